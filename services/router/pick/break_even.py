"""The break-even of local prefill: the prompts that the picker would let a decode worker prefill.

`python -m services.router.pick.break_even JSON` with the fields of `Figures` prints one JSON line
per (running streams, prompt length, cached share). There is one worker of each role, without other
work; the cached part of the prompt is cached on both.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from baton.system.clock import SystemClock
from services.router.fleet.reported import BlockShape
from services.router.fleet.views import Demand, Policy, PrefillMode, Room, Speed, WorkerView
from services.router.fleet.zones import ZoneLinks
from services.router.pick.picker import NoPick, pick
from services.router.settings import Settings

NUM_RUNNING = (0, 1, 4, 16)
NUM_PROMPT_TOKENS = (16, 64, 256, 1024, 4096)
CACHED_SHARES = (0.0, 0.5, 0.9, 0.99)
_NUM_OUTPUT_TOKENS = 128
_NUM_BLOCKS = 1 << 20
_NUM_BATCH_SLOTS = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Rates of one machine, as its workers report them; a handoff rate of 0 is unknown."""

    block_size: int
    block_bytes: int
    prefill_tokens_per_s: float
    local_prefill_tokens_per_s: float
    decode_step_s: float
    handoff_bytes_per_s: float
    handoff_s: float
    chunk_tokens: int


def curve(figures: Figures) -> Iterator[dict[str, float | bool]]:
    """Yield the points of the grid, and for each whether its prompt stays on the decode worker."""
    for num_running in NUM_RUNNING:
        for num_tokens in NUM_PROMPT_TOKENS:
            for share in CACHED_SHARES:
                yield {
                    "num_running": num_running,
                    "num_prompt_tokens": num_tokens,
                    "cached_share": share,
                    "is_local": is_local(figures, num_running, num_tokens, int(share * num_tokens)),
                }


def is_local(
    figures: Figures, num_running: int, num_prompt_tokens: int, num_cached_tokens: int
) -> bool:
    """Ask the picker whether the decode worker should prefill such a prompt."""
    policy = Policy.of(Settings(), ZoneLinks(SystemClock(), math.inf))
    demand = Demand(num_prompt_tokens, _NUM_OUTPUT_TOKENS, 1, PrefillMode.EITHER)
    decode = _view("decode", figures, figures.local_prefill_tokens_per_s, num_cached_tokens)
    prefill = _view("prefill", figures, figures.prefill_tokens_per_s, num_cached_tokens)
    picked = pick(demand, [_running(decode, num_running)], [prefill], policy, Random(0))
    assert not isinstance(picked, NoPick), picked.obstacle
    return picked.prefill is None


def _view(name: str, figures: Figures, rate: float, num_cached_tokens: int) -> WorkerView:
    size = figures.block_size
    return WorkerView(
        worker_id=name,
        unfit=None,
        shape=BlockShape("one", size, figures.block_bytes),
        room=Room(_NUM_BLOCKS, _NUM_BLOCKS, 0, _NUM_BATCH_SLOTS, _NUM_BATCH_SLOTS),
        speed=Speed(
            rate,
            figures.decode_step_s,
            figures.handoff_bytes_per_s or Settings().prior_handoff_bytes_per_s,
            figures.handoff_s,
        ),
        num_running=0,
        num_sequences=0,
        num_queued_prefill_tokens=0,
        num_cached_tokens=num_cached_tokens // size * size,
        chunk_tokens=figures.chunk_tokens,
    )


def _running(view: WorkerView, num_running: int) -> WorkerView:
    return view._replace(num_running=num_running, num_sequences=num_running)


def main(argv: Sequence[str]) -> None:
    for point in curve(Figures(**json.loads(argv[0]))):
        print(json.dumps(point))


if __name__ == "__main__":
    main(sys.argv[1:])
