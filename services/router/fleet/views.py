"""The figures that a pick is made from: the request's demand, and each worker as it stands.

Knows neither time nor queues nor the source of the figures (`fleet.py`, `speeds.py`).
"""

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple, Self

from services.router.fleet.reported import BlockShape
from services.router.fleet.zones import ZoneLinks
from services.router.settings import Settings


class PrefillMode(Enum):
    """The workers that may prefill this request's prompt."""

    REMOTE = "remote"  # on a prefill worker only
    LOCAL = "local"  # on the decode worker only
    EITHER = "either"  # on the one with the lower score


class Unfit(StrEnum):
    """Why a worker must not be picked for a request now, as the reasons of a pick name it."""

    DRAINING = "draining"
    STALLED = "stalled"
    EJECTED = "ejected"
    LOST = "lost"  # its stream of reports broke
    STALE = "stale"  # connected, without a recent report
    EXCLUDED = "excluded"  # it refused or failed this request before
    UNSUPPORTED = "unsupported"  # its engine does not serve a parameter of this request
    NO_ADAPTER = "no adapter"  # it does not serve the LoRA adapter of this request
    RESERVED = "kept"  # reserved for the first request in line


class Others(NamedTuple):
    """The workers that a pick leaves out, because they score worse (`pick/shortlist.py`).

    `num_workers` counts those of both pools. `idle_step_s` is the idle step of the whole decode
    pool; 0 = that of the workers looked at. Where no worker has room, one that is looked at or left
    out could have the first token in `first_token_s`.
    """

    num_workers: int = 0
    idle_step_s: float = 0.0
    first_token_s: float = math.inf


NO_OTHERS = Others()


class Demand(NamedTuple):
    """The needs of a request. A decode worker may prefill `max_local_tokens` of it; None = all.
    The workers of `session` served requests like it. One that `is_quiet` goes before others."""

    num_prompt_tokens: int
    expected_output_tokens: int
    num_choices: int
    mode: PrefillMode
    max_local_tokens: int | None = None
    others: Others = NO_OTHERS
    session: frozenset[str] = frozenset()
    is_quiet: bool = False


class Room(NamedTuple):
    """A worker's blocks and batch slots; the router's open slot leases count as taken.

    Requests of quiet tenants find `num_extra_slots_free` more than there are.
    """

    num_blocks: int
    num_blocks_free: int
    num_blocks_promised: int
    num_batch_slots: int
    num_batch_slots_free: int
    num_extra_slots_free: int = 0


class Speed(NamedTuple):
    """Measured rates, or priors: never 0. The smallest handoff takes `handoff_s`, and the wait for
    a step that runs `step_wait_s`; 0 = unknown.

    `is_measured`: so is the rate of prefill, by this worker or another one of the model.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    handoff_bytes_per_s: float
    handoff_s: float = 0.0
    step_wait_s: float = 0.0
    is_measured: bool = True


class WorkerView(NamedTuple):
    """One worker as it stands at the moment of the pick.

    `unfit` is None when it may be picked. `num_running` sequences were in the measured step,
    `num_sequences` are expected in the next ones. `num_cached_tokens` of this request's prompt are
    in its prefix cache. `chunk_tokens` of a prompt fit into a step beside the decodes that run
    there; 0 = not known, the whole prompt counts as one chunk. `zone` is where it runs; empty = not
    known.
    """

    worker_id: str
    unfit: Unfit | None
    shape: BlockShape
    room: Room
    speed: Speed
    num_running: int
    num_sequences: int
    num_queued_prefill_tokens: int
    num_cached_tokens: int
    chunk_tokens: int = 0
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """The weights of a pick (settings.py), and the speeds of handoffs between zones."""

    itl_weight: float
    batch_doubling: float
    promise_cap: float
    growth_blocks: int
    links: ZoneLinks
    prior_far_handoff_bytes_per_s: float
    far_handoff_cost_s: float

    @classmethod
    def of(cls, settings: Settings, links: ZoneLinks) -> Self:
        """Take the weights from the settings."""
        return cls(
            itl_weight=settings.itl_weight,
            batch_doubling=settings.batch_doubling,
            promise_cap=settings.promise_cap,
            growth_blocks=settings.growth_blocks,
            links=links,
            prior_far_handoff_bytes_per_s=settings.prior_far_handoff_bytes_per_s,
            far_handoff_cost_s=settings.far_handoff_cost_s,
        )
