"""The choice of the pair of workers for one request (decision 0018): filter -> score -> pick.

    score(P, D) = min(wait_P + miss_P / rate_P + transfer(miss_D),  wait_D + miss_D / rate_D)
                  + w * predicted ITL increase on D * expected output

The second argument of min is local prefill ("no P"): the decode worker prefills the prompt itself,
in the same steps as its decodes. Each step then takes longer for both: this prompt waits for a
decode step per chunk ("steps"), and every stream that runs there waits for the whole prefill,
weighted with w ("streams"). That is why a long prompt is worth a handoff although the decode worker
could prefill it as fast. Pure: the same inputs and the same randomness give the same pick;
randomness only breaks ties. Knows neither time nor queues nor the source of the figures
(`fleet/fleet.py`, `fleet/speeds.py`).
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from services.router.fleet.views import Demand, Policy, PrefillMode, Unfit, WorkerView
from services.router.pick import costs

MAX_REASONS = 12
_TIE = 1e-9


class Obstacle(StrEnum):
    """Why a pair of workers, or every pair, cannot take a request now."""

    NO_WORKER = "no_worker"  # no pair of fit workers is there
    NO_ROOM = "no_room"
    TOO_LARGE = "too_large"  # it never fits
    TOO_LONG_FOR_LOCAL_PREFILL = "too_long_for_local_prefill"


@dataclass(frozen=True, slots=True)
class Pick:
    """The chosen pair, and the blocks it will take on `decode`; no `prefill` = local prefill.

    The first token is predicted to come in `first_token_s` (0 = not known), and the request to take
    `engine_s` of the engines' time.
    """

    decode: WorkerView
    prefill: WorkerView | None
    num_decode_blocks: int
    reasons: str
    first_token_s: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class NoPick:
    """No pair, and why. The workers in `full` could decode the request if they had room.

    There the first token would come in `first_token_s`; 0 = not known.
    """

    obstacle: Obstacle
    reasons: str
    full: tuple[WorkerView, ...] = ()
    first_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    decode: WorkerView
    prefill: WorkerView | None
    # Seconds by part, in the order of the formula.
    parts: dict[str, float]

    @property
    def score_s(self) -> float:
        return sum(self.parts.values())

    @property
    def name(self) -> str:
        return self.decode.worker_id + (f"+{self.prefill.worker_id}" if self.prefill else "")


def pick(
    demand: Demand,
    decodes: Sequence[WorkerView],
    prefills: Sequence[WorkerView],
    policy: Policy,
    random: Random,
) -> Pick | NoPick:
    """Return the best pair that has room, or why there is none. All views are of one model."""
    losses: list[str] = []
    candidates: list[_Candidate] = []
    fit_decodes = _fit(decodes, losses)
    partners = {}
    if demand.mode is not PrefillMode.LOCAL:
        partners = _partners(demand, _fit(prefills, losses), losses, random)
    pool_step_s = demand.others.idle_step_s or costs.idle_pool_step_s(fit_decodes, policy)
    obstacles: set[Obstacle] = set()
    full: list[WorkerView] = []
    soonest_s = demand.others.first_token_s
    for decode in fit_decodes:
        itl_s = costs.itl_increase_s(demand, decode, policy, pool_step_s)
        ways = _ways(demand, decode, partners)
        if not ways:
            losses.append(f"{decode.worker_id} no_partner")
        for prefill in ways:
            obstacle = _obstacle(demand, decode, prefill, policy)
            if obstacle:
                obstacles.add(obstacle)
                if obstacle is Obstacle.NO_ROOM:
                    full.append(decode)
                    first_token_s = costs.first_token_s(demand, decode, prefill, pool_step_s)
                    soonest_s = min(soonest_s, first_token_s)
                losses.append(f"{decode.worker_id} {obstacle}")
            else:
                parts = costs.ttft_s(demand, decode, prefill) | {"itl": itl_s}
                parts["steps"] = costs.steps_s(demand, decode, prefill, pool_step_s)
                if prefill is None and decode.num_running:
                    parts["streams"] = costs.delay_s(demand, decode, policy)
                candidates.append(_Candidate(decode, prefill, parts))
    if not candidates:
        obstacle = _main_obstacle(obstacles, decodes)
        reasons = _join(losses, demand.others.num_workers)
        return NoPick(obstacle, reasons, tuple(full), soonest_s if full else 0.0)
    best = _lowest(candidates, random)
    return Pick(
        best.decode,
        best.prefill,
        _blocks_needed(demand, best.decode, policy),
        _explain(demand, best, candidates, losses),
        costs.first_token_s(demand, best.decode, best.prefill, pool_step_s),
        costs.engine_s(demand, best.decode, best.prefill),
    )


def _blocks_needed(demand: Demand, decode: WorkerView, policy: Policy) -> int:
    """Blocks that the choices will take on the decode worker beyond those that it has cached.

    The choices share the full blocks of the prompt.
    """
    size = decode.shape.block_size
    longest = (-(-demand.num_prompt_tokens // size) + policy.growth_blocks) * size
    num_tokens = min(longest, demand.num_prompt_tokens + max(1, demand.expected_output_tokens))
    num_blocks = min(-(-num_tokens // size), decode.room.num_blocks)
    num_own = max(0, num_blocks - demand.num_prompt_tokens // size)
    return num_blocks - decode.num_cached_tokens // size + num_own * (demand.num_choices - 1)


def _fit(views: Sequence[WorkerView], losses: list[str]) -> list[WorkerView]:
    losses += [f"{view.worker_id} {view.unfit}" for view in views if view.unfit]
    return [view for view in views if not view.unfit]


def _partners(
    demand: Demand, prefills: list[WorkerView], losses: list[str], random: Random
) -> dict[str, WorkerView]:
    """The soonest prefill worker of each block shape: wait_P + miss_P / rate_P ignores D."""
    shapes: dict[str, list[WorkerView]] = {}
    for view in prefills:
        shapes.setdefault(view.shape.digest, []).append(view)
    partners = {}
    for digest, views in shapes.items():
        large = [
            view for view in views if costs.prompt_blocks(demand, view) <= view.room.num_blocks
        ]
        seconds = {view.worker_id: costs.remote_s(demand, view) for view in large or views}
        soonest_s = min(seconds.values())
        ties = [v for v in large or views if seconds[v.worker_id] <= soonest_s + _TIE]
        partners[digest] = random.choice(ties)
        for view in views:
            if view is not partners[digest]:
                behind_s = seconds.get(view.worker_id, math.inf) - soonest_s
                losses.append(f"{view.worker_id} +{behind_s:.4g}s until prefilled")
    return partners


def _ways(
    demand: Demand, decode: WorkerView, partners: dict[str, WorkerView]
) -> list[WorkerView | None]:
    """The prefill partners to score for this decode worker; None stands for local prefill."""
    ways: list[WorkerView | None] = [] if demand.mode is PrefillMode.REMOTE else [None]
    partner = partners.get(decode.shape.digest)
    if partner is not None:
        ways.append(partner)
    return ways


def _obstacle(
    demand: Demand, decode: WorkerView, prefill: WorkerView | None, policy: Policy
) -> Obstacle | None:
    """The reason why the pair cannot take the request now, or None when it can."""
    room, prompt_blocks = decode.room, costs.prompt_blocks(demand, decode)
    if prompt_blocks > room.num_blocks or (prefill and prompt_blocks > prefill.room.num_blocks):
        return Obstacle.TOO_LARGE
    if (
        prefill is None
        and demand.max_local_tokens is not None
        and decode.missing_tokens(demand.num_prompt_tokens) > demand.max_local_tokens
    ):
        return Obstacle.TOO_LONG_FOR_LOCAL_PREFILL
    needed = _blocks_needed(demand, decode, policy)
    if prefill and needed > room.num_blocks:
        return Obstacle.TOO_LARGE  # the blocks of all choices are promised together
    # Choices for which an idle worker has no batch slot, or with local prefill no block, run one
    # after the other.
    if room.num_batch_slots_free < min(demand.num_choices, room.num_batch_slots):
        return Obstacle.NO_ROOM
    if room.num_blocks_free < min(needed, room.num_blocks):
        return Obstacle.NO_ROOM
    # A promise may exceed the cap only when it is the only one (decision 0029).
    promised = room.num_blocks_promised
    if prefill and promised and promised + needed > policy.promise_cap * room.num_blocks:
        return Obstacle.NO_ROOM
    return None


def _lowest(candidates: list[_Candidate], random: Random) -> _Candidate:
    lowest = min(candidate.score_s for candidate in candidates)
    return random.choice([c for c in candidates if c.score_s <= lowest + _TIE])


def _main_obstacle(obstacles: set[Obstacle], decodes: Sequence[WorkerView]) -> Obstacle:
    has_room_later = (Unfit.EXCLUDED, Unfit.RESERVED)
    if Obstacle.NO_ROOM in obstacles or any(view.unfit in has_room_later for view in decodes):
        return Obstacle.NO_ROOM
    # A worker that is unfit for now might be large enough.
    if obstacles == {Obstacle.TOO_LARGE} and not any(view.unfit for view in decodes):
        return Obstacle.TOO_LARGE
    return Obstacle.NO_WORKER


def _explain(
    demand: Demand, best: _Candidate, candidates: list[_Candidate], losses: list[str]
) -> str:
    """The winner with its costs; each loser with the seconds it lost by, and their largest part."""
    computing = best.prefill or best.decode
    costs = " ".join(f"{part} {seconds:.4g}" for part, seconds in best.parts.items())
    won = (
        f"{best.name} {best.score_s:.4g}s ({costs}; "
        f"cached {computing.num_cached_tokens}/{demand.num_prompt_tokens})"
    )
    losers = heapq.nsmallest(
        MAX_REASONS, (c for c in candidates if c is not best), key=lambda c: c.score_s
    )
    num_omitted = demand.others.num_workers + len(candidates) - 1 - len(losers)
    return _join([won, *(_lost_by(loser, best) for loser in losers), *losses], num_omitted)


def _lost_by(loser: _Candidate, best: _Candidate) -> str:
    parts = {part: cost - best.parts.get(part, 0.0) for part, cost in loser.parts.items()}
    worst = max(parts, key=lambda part: parts[part])
    return f"{loser.name} +{loser.score_s - best.score_s:.4g}s {worst}"


def _join(parts: list[str], num_omitted: int = 0) -> str:
    shown = parts[:MAX_REASONS]
    num_omitted += len(parts) - len(shown)
    return "; ".join([*shown, f"and {num_omitted} more"] if num_omitted else shown)
