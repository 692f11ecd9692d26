"""`python -m bench.gpu handoff`: KV from one worker's core to another's, on one GPU.

Two core processes as workers start them; a prompt's blocks are prefilled in one and read by the
other through NIXL, from device to device, as the product's transport does, checksums included. In
turn: a prefill alone, a transfer alone, and both at once; beside them a copy of as many bytes
within the device. At the end all full blocks are compared byte for byte, by way of the shared
pools. With `--device cpu` the same runs on host memory with the demo model, to see that it runs:
its figures say nothing of a GPU.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from baton.demo_model import demo_model_path
from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.client import CoreDied, CoreNotStarted
from bench.gpu.gpu_handoff_front import CoreFront, Prefilled, WrongHandoff
from bench.gpu.gpu_machine import Stopwatch
from bench.gpu.gpu_report import Cell, Table, render, write_tables
from bench.models import cache_folder, ensure_model

SLOWDOWN_AIM = 0.05
_CORES = {"cuda": "baton.worker.core_main", "cpu": "bench.gpu.gpu_handoff_core"}
# On a GPU a model of 474 M weights: 112 KiB of KV per token, half a GB for a prompt.
_DEFAULT_TOKENS = {"cuda": 4097, "cpu": 257}
_KV_MEMORY = {"cuda": "4GiB", "cpu": "64MiB"}


@dataclass(frozen=True, slots=True)
class HandoffPlan:
    """The prompts to hand over, and how often."""

    device: torch.device
    model: Path
    num_tokens: int
    num_rounds: int


@dataclass(slots=True)
class Times:
    """Seconds, one of each per round; `during_s` is a prefill while a transfer runs."""

    prefill_s: list[float]
    transfer_s: list[float]
    during_s: list[float]


def main(argv: Sequence[str]) -> int:
    """Run and print the table; 1 when blocks were wrong, 2 where it cannot run at all."""
    options = _parse(argv)
    if (reason := _missing(options.device)) is not None:
        print(f"bench.gpu handoff needs {reason}", file=sys.stderr)
        return 2
    plan = HandoffPlan(
        torch.device(options.device),
        options.model or _default_model(options.device),
        options.tokens or _DEFAULT_TOKENS[options.device],
        options.rounds,
    )
    try:
        table = asyncio.run(measure_handoff(plan))
    except (CoreNotStarted, CoreDied, WrongHandoff, TimeoutError) as error:
        print(
            f"bench.gpu handoff failed: {error or 'a core did not answer'}",
            file=sys.stderr,
        )
        return 1
    print(render([table]))
    if options.device == "cuda":
        write_tables([table], options.out, options.name)
    return int(bool(table.errors))


async def measure_handoff(plan: HandoffPlan) -> Table:
    """Raises CoreNotStarted, CoreDied, WrongHandoff and TimeoutError."""
    async with _core(plan, "prefill") as prefill, _core(plan, "decode") as decode:
        decode.open(prefill)
        prompts = _Prompts(plan.num_tokens, prefill.client.info.vocab_size)
        prompt = prompts.next()
        source = await prefill.prefill(prompt)
        seq_id, block_ids = await decode.bind(prompt)
        await decode.read(source, block_ids)
        times = Times([], [], [])
        for _ in range(plan.num_rounds):
            await _measure_round(prefill, decode, prompts, source, block_ids, times)
        await decode.start(seq_id, source.tokens[0])
        prefill.release(source)
        errors = await _compare(prefill, decode, prompt)
        num_bytes = len(source.checksums) * prefill.spec.row_bytes
        return _table(plan, times, num_bytes, errors)


async def _measure_round(
    prefill: CoreFront,
    decode: CoreFront,
    prompts: "_Prompts",
    source: Prefilled,
    block_ids: list[int],
    times: Times,
) -> None:
    alone = await prefill.prefill(prompts.next())
    prefill.release(alone)
    times.prefill_s.append(alone.seconds)
    times.transfer_s.append(await decode.read(source, block_ids))
    during, _ = await asyncio.gather(
        prefill.prefill(prompts.next()), decode.read(source, block_ids)
    )
    prefill.release(during)
    times.during_s.append(during.seconds)


async def _compare(prefill: CoreFront, decode: CoreFront, prompt: list[int]) -> list[str]:
    """Let both hand the same prompt over through their shared pools: its blocks are cached."""
    ours = await prefill.prefill(prompt, checksum_every=None)
    theirs = await decode.prefill(prompt, checksum_every=None)
    num_full = (len(prompt) - 1) // prefill.spec.block_size
    errors = [
        f"the {name} worker has {each.num_cached_tokens} of {len(prompt)} tokens in its cache"
        for name, each in (("prefill", ours), ("decode", theirs))
        if each.num_cached_tokens < num_full * prefill.spec.block_size
    ]
    wrong = [
        place
        for place in range(num_full)
        if prefill.shared_row(ours.rows[place]) != decode.shared_row(theirs.rows[place])
    ]
    if wrong:
        errors.append(f"{len(wrong)} of {num_full} blocks differ, the first is block {wrong[0]}")
    if not any(prefill.shared_row(ours.rows[0])):
        errors.append("the first block is empty")
    if ours.tokens != theirs.tokens:
        errors.append("the two workers go on with different tokens")
    return errors


def _table(plan: HandoffPlan, times: Times, num_bytes: int, errors: list[str]) -> Table:
    place = "device" if plan.device.type == "cuda" else "host"
    copy_rate = num_bytes / _copy_seconds(plan.device, num_bytes) / 1e9
    rate = num_bytes / median(times.transfer_s) / 1e9
    ratios = [during / alone for during, alone in zip(times.during_s, times.prefill_s, strict=True)]
    title = f"Handoff between two cores, {num_bytes / 2**20:.0f} MiB, {plan.num_rounds} rounds"
    rows: list[list[Cell]] = [
        [f"copy in {place} memory, GB/s", copy_rate],
        ["transfer, GB/s", rate],
        [f"of the {place} copy", rate / copy_rate],
        [f"prefill of {plan.num_tokens} tokens alone, ms", median(times.prefill_s) * 1e3],
        ["prefill during a transfer, ms", median(times.during_s) * 1e3],
        [f"prefill slowdown (aim: at most {SLOWDOWN_AIM})", median(ratios) - 1],
    ]
    table = Table("handoff", title, ["what", "value"], rows, errors=errors)
    table.notes.append("Medians. Each page's checksum was right in every transfer.")
    if not errors:
        table.notes.append("All full blocks are the same on both sides, byte for byte.")
    if plan.device.type == "cpu":
        table.notes.append("On host memory, without a GPU: these figures mean nothing.")
    return table


def _copy_seconds(device: torch.device, num_bytes: int) -> float:
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Stopwatch(device).seconds(lambda: target.copy_(source))


class _Prompts:
    """Random tokens, so that nothing of a prompt is in a cache."""

    def __init__(self, num_tokens: int, vocab_size: int) -> None:
        self._rng = np.random.default_rng(11)
        self._num_tokens = num_tokens
        self._vocab_size = vocab_size

    def next(self) -> list[int]:
        tokens: list[int] = self._rng.integers(0, self._vocab_size, self._num_tokens).tolist()
        return tokens


@contextlib.asynccontextmanager
async def _core(plan: HandoffPlan, name: str) -> AsyncIterator[CoreFront]:
    kind = plan.device.type
    args = ["--model", str(plan.model), "--device", kind, "--nixl-agent", f"bench-{name}"]
    args += ["--kv-memory", _KV_MEMORY[kind], "--max-batch", "8"]
    args += ["--max-model-len", str(plan.num_tokens + 16)]
    client = await ProcessEngineClient.start(EngineSpec(_CORES[kind]), args)
    try:
        yield CoreFront(client)
    finally:
        await client.close()


def _missing(device: str) -> str | None:
    if device == "cuda" and not torch.cuda.is_available():
        return "a GPU that torch can use; --device cpu tries the same on host memory"
    if not any(importlib.util.find_spec(name) for name in ("nixl_cu12", "nixl_cu13")):
        return "NIXL: pip install nixl-cu12"
    return None


def _default_model(device: str) -> Path:
    return demo_model_path() if device == "cpu" else ensure_model("small", cache_folder())


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.gpu handoff", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    help_text = "folder; default: one with random weights, on a CPU the demo model"
    parser.add_argument("--model", type=Path, help=help_text)
    parser.add_argument("--tokens", type=int, help="of the prompt that is handed over")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="folder")
    parser.add_argument("--name", default="gpu-handoff", help="of the results: results/NAME.json")
    return parser.parse_args(argv)
