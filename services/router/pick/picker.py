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

from collections.abc import Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from random import Random
from typing import NamedTuple

from services.router.fleet.views import Demand, Policy, PrefillMode, Room, Unfit, WorkerView
from services.router.pick import costs
from services.router.pick.reasons import MAX_OTHERS, Choice, LeftOut, Reasons

_TIE = 1e-9


class Obstacle(StrEnum):
    """Why a pair of workers, or every pair, cannot take a request now."""

    NO_WORKER = "no_worker"  # no pair of fit workers is there
    NO_ROOM = "no_room"
    TOO_LARGE = "too_large"  # it never fits
    TOO_LONG_FOR_LOCAL_PREFILL = "too_long_for_local_prefill"


class Pick(NamedTuple):
    """The chosen pair, and the blocks it will take on `decode`; no `prefill` = local prefill.

    The first token is predicted to come in `first_token_s` (0 = not known), and the request to take
    `engine_s` of the engines' time.
    """

    decode: WorkerView
    prefill: WorkerView | None
    num_decode_blocks: int
    reasons: Reasons
    first_token_s: float
    engine_s: float


class NoPick(NamedTuple):
    """No pair, and why. The workers in `full` could decode the request if they had room.

    There the first token would come in `first_token_s`; 0 = not known.
    """

    obstacle: Obstacle
    reasons: Reasons
    full: tuple[WorkerView, ...] = ()
    first_token_s: float = 0.0


class _Partners(NamedTuple):
    """The prefill workers of one block shape in one zone: the soonest one, and others with room,
    each with the seconds until it would have computed the prompt."""

    soonest: WorkerView
    others: Sequence[tuple[float, WorkerView]]


# The soonest prefill worker is the same for all decode workers of one shape and zone.
_ByShapeAndZone = Mapping[tuple[str, str], _Partners]


def pick(
    demand: Demand,
    decodes: Sequence[WorkerView],
    prefills: Sequence[WorkerView],
    policy: Policy,
    random: Random,
) -> Pick | NoPick:
    """Return the best pair that has room, or why there is none. All views are of one model."""
    left_out: list[LeftOut] = []
    choices: list[Choice] = []
    fit_decodes = _fit(decodes, left_out)
    partners: _ByShapeAndZone = {}
    if demand.mode is not PrefillMode.LOCAL:
        partners = _partners(demand, _fit(prefills, left_out), left_out, random)
    pool_step_s = demand.others.idle_step_s or costs.idle_pool_step_s(fit_decodes, policy)
    pick_costs = costs.PickCosts(demand, policy, pool_step_s)
    obstacles: set[Obstacle] = set()
    full: list[WorkerView] = []
    soonest_s = demand.others.first_token_s
    for decode in fit_decodes:
        ways = _ways(demand, decode, partners)
        if not ways:
            left_out.append(LeftOut(decode.worker_id, "no_partner"))
        step_s = pick_costs.step_s(decode)
        for prefill in ways:
            choice = Choice(decode, prefill, pick_costs.of(decode, prefill, step_s), step_s)
            obstacle = _obstacle(demand, decode, prefill, policy)
            if obstacle is None:
                choices.append(choice)
                continue
            obstacles.add(obstacle)
            if (loser := LeftOut(decode.worker_id, obstacle)) not in left_out[-2:]:
                left_out.append(loser)
            if obstacle is Obstacle.NO_ROOM:
                full.append(decode)
                soonest_s = min(soonest_s, choice.first_token_s)
    num_unseen = demand.others.num_workers
    if not choices:
        obstacle = _main_obstacle(obstacles, decodes)
        reasons = Reasons(demand.num_prompt_tokens, left_out, num_unseen=num_unseen)
        return NoPick(obstacle, reasons, tuple(full), soonest_s if full else 0.0)
    best = _lowest(choices, random)
    others = [choice for choice in choices if choice is not best]
    others += [
        Choice(best.decode, prefill, pick_costs.of(best.decode, prefill, best.step_s), best.step_s)
        for prefill in _rivals(best, partners)
    ]
    return Pick(
        best.decode,
        best.prefill,
        _blocks_needed(demand, best.decode, policy),
        Reasons(demand.num_prompt_tokens, left_out, best, others, num_unseen),
        best.first_token_s,
        pick_costs.engine_s(best.decode, best.costs),
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


def _fit(views: Sequence[WorkerView], left_out: list[LeftOut]) -> list[WorkerView]:
    left_out += [LeftOut(view.worker_id, view.unfit) for view in views if view.unfit]
    return [view for view in views if not view.unfit]


def _partners(
    demand: Demand, prefills: list[WorkerView], left_out: list[LeftOut], random: Random
) -> _ByShapeAndZone:
    """The prefill workers by block shape and zone: wait_P + miss_P / rate_P ignores D."""
    groups: dict[tuple[str, str], list[WorkerView]] = {}
    for view in prefills:
        groups.setdefault((view.shape.digest, view.zone), []).append(view)
    partners = {}
    for key, views in groups.items():
        small = [view for view in views if costs.prompt_blocks(demand, view) > view.room.num_blocks]
        if small and len(small) < len(views):
            left_out += [LeftOut(view.worker_id, Obstacle.TOO_LARGE) for view in small]
            views = [view for view in views if view not in small]
        seconds = [costs.remote_s(demand, view) for view in views]
        latest_s = min(seconds) + _TIE
        timed = list(zip(seconds, views, strict=True))
        soonest = random.choice([view for own_s, view in timed if own_s <= latest_s])
        partners[key] = _Partners(soonest, [each for each in timed if each[1] is not soonest])
    return partners


def _rivals(best: Choice, partners: _ByShapeAndZone) -> Sequence[WorkerView]:
    """The next soonest prefill workers of the chosen one's zone."""
    if best.prefill is None:
        return ()
    others = partners[best.prefill.shape.digest, best.prefill.zone].others
    return [view for _, view in sorted(others, key=itemgetter(0))[:MAX_OTHERS]]


def _ways(demand: Demand, decode: WorkerView, partners: _ByShapeAndZone) -> list[WorkerView | None]:
    """The prefill partners to score for this decode worker; None stands for local prefill."""
    ways: list[WorkerView | None] = [] if demand.mode is PrefillMode.REMOTE else [None]
    ways += [
        each.soonest for (digest, _), each in partners.items() if digest == decode.shape.digest
    ]
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
        and costs.uncached_tokens(demand.num_prompt_tokens, decode) > demand.max_local_tokens
    ):
        return Obstacle.TOO_LONG_FOR_LOCAL_PREFILL
    needed = _blocks_needed(demand, decode, policy)
    if prefill and needed > room.num_blocks:
        return Obstacle.TOO_LARGE  # the blocks of all choices are promised together
    if _lacks_slots(demand, room, is_local=prefill is None):
        return Obstacle.NO_ROOM
    if room.num_blocks_free < min(needed, room.num_blocks):
        return Obstacle.NO_ROOM
    # A promise may exceed the cap only when it is the only one (decision 0029).
    promised = room.num_blocks_promised
    if prefill and promised and promised + needed > policy.promise_cap * room.num_blocks:
        return Obstacle.NO_ROOM
    return None


def _lacks_slots(demand: Demand, room: Room, *, is_local: bool) -> bool:
    """Return whether there are too few batch slots. Choices for which an idle worker has none, or
    with local prefill no block, run one after the other. A full batch has no step for a prompt."""
    if room.num_batch_slots_free >= min(demand.num_choices, room.num_batch_slots):
        return False
    takes_extra = demand.is_quiet and demand.num_choices == 1 and not is_local
    return not (takes_extra and room.num_extra_slots_free)


def _lowest(choices: list[Choice], random: Random) -> Choice:
    scores = [sum(choice.costs) for choice in choices]
    highest = min(scores) + _TIE
    ties = [choice for choice, own in zip(choices, scores, strict=True) if own <= highest]
    return random.choice(ties)


def _main_obstacle(obstacles: set[Obstacle], decodes: Sequence[WorkerView]) -> Obstacle:
    has_room_later = (Unfit.EXCLUDED, Unfit.RESERVED)
    if Obstacle.NO_ROOM in obstacles or any(view.unfit in has_room_later for view in decodes):
        return Obstacle.NO_ROOM
    # A worker that is unfit for now might be large enough.
    if obstacles == {Obstacle.TOO_LARGE} and not any(view.unfit for view in decodes):
        return Obstacle.TOO_LARGE
    return Obstacle.NO_WORKER
