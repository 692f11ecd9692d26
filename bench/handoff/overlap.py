"""Measures what a handoff leaves to wait for behind a real prefill that fits into one step.

A prefill worker with its core computes prompts of the model `small` and sends their KV while it
computes; this process receives. The exposed part is the time from the first token to the last
block, beside the time in which two processes that compute nothing move as many bytes.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from baton.handoff.ticket import Ticket
from baton.wire.kv_spec import KVSpec, to_wire
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import handoff_pb2
from bench.handoff.handoff import BenchOptions, Link, Peer, running, running_peer, with_plain
from bench.handoff.handoff_pair import BLOCK_SIZE, SPEC, Pool
from bench.model_shape import ModelShape
from bench.models import cache_folder, ensure_model

MODEL = "small"
PROMPTS = (500, 1025, 2000)
_PEER = "bench.handoff.engine_peer"
_DEADLINE_MS = 600_000

Record = dict[str, Any]


def run_overlap(options: BenchOptions, output: Path, report: Callable[[str], None]) -> None:
    """Measure behind each transport that needs no other library, into more lines of `output`."""

    def note(record: Record) -> None:
        with output.open("a") as file:
            file.write(json.dumps(record) + "\n")

    for transport in options.transports:
        if transport != "nixl":
            report(f"{options.num_rounds} prefills of {MODEL} behind {transport}")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure_overlap(options, transport, note))


async def measure_overlap(
    options: BenchOptions, transport: str, report: Callable[[Record], None]
) -> None:
    """Report one record for each length of a prompt."""
    model = ensure_model(MODEL, cache_folder())
    spec = _spec(ModelShape.of_folder(model))
    pool = Pool(spec.num_blocks_for(max(PROMPTS)), spec)
    num_idle_blocks = -(-len(pool.memory) // SPEC.row_bytes)
    idle_pool = Pool(num_idle_blocks)
    names = with_plain(transport)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [name, str(model), str(options.num_threads), *names]
        idle_options = BenchOptions(num_blocks=num_idle_blocks)
        with (
            running(_PEER, words, folder) as started,
            running_peer(folder, idle_options, transport) as ports,
        ):
            idle_peer = Peer(idle_pool, idle_pool.transports(names, folder, is_sender=False), ports)
            peer = Peer(pool, pool.transports(names, folder, is_sender=False), started)
            hello = {
                "protocol": PROTOCOL_VERSION,
                "model_fp": started["model_fp"],
                "kv_spec": to_wire(spec),
                "tp_size": 1,
            }
            async with idle_peer.link() as idle, peer.link(**hello) as link:
                for num_tokens in PROMPTS:
                    times = await _rounds(link, idle, spec, num_tokens, options.num_rounds)
                    num_bytes = spec.num_blocks_for(num_tokens) * spec.row_bytes
                    shape = {"num_tokens": num_tokens, "num_bytes": num_bytes}
                    report({"part": "overlap", "contender": transport, **shape, **times})


async def _rounds(
    link: Link, idle: Link, spec: KVSpec, num_tokens: int, num_rounds: int
) -> dict[str, list[float]]:
    """Seconds of each round; the first one is for warming up."""
    times: dict[str, list[float]] = {"prefill_s": [], "exposed_s": [], "idle_s": []}
    num_blocks = spec.num_blocks_for(num_tokens)
    num_idle_blocks = -(-num_blocks * spec.row_bytes // SPEC.row_bytes)
    for number in range(num_rounds + 1):
        total_s, exposed_s = await link.move(num_blocks, lambda ticket: _ask(ticket, num_tokens))
        idle_s, _ = await idle.transfer(num_idle_blocks)
        if number:
            times["prefill_s"].append(total_s - exposed_s)
            times["exposed_s"].append(exposed_s)
            times["idle_s"].append(idle_s)
    return times


def _spec(shape: ModelShape) -> KVSpec:
    layer = (shape.num_kv_heads, shape.head_dim, shape.head_dim, "bfloat16")
    return KVSpec.of_layers(BLOCK_SIZE, [layer] * shape.num_layers)


def _ask(ticket: Ticket, num_tokens: int) -> handoff_pb2.Prefill:
    """A prompt that nothing is cached of."""
    tokens = np.random.default_rng([num_tokens, ticket.xfer_id]).integers(3, 10_000, num_tokens)
    return handoff_pb2.Prefill(
        xfer_id=ticket.xfer_id,
        request_id=f"bench-{ticket.xfer_id}",
        epoch=ticket.epoch,
        capability=ticket.capability,
        prompt_ids=tokens.astype("<u4").tobytes(),
        num_prompt_tokens=num_tokens,
        cache_key=bytes(32),
        sampling={"max_tokens": 2, "num_choices": 1},
        deadline_ms=_DEADLINE_MS,
    )
