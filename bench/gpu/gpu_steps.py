"""Whole steps on a GPU with random weights: how long, how far from the limit, and how idle the GPU.

A decode step reads all weights and the batch's cache once: its limit is memory. Steps are timed as
the engine sees them, from a batch to its tokens in host memory, through transformers' modules and
through the fused forward pass, as they are and as captured graphs; the last also launched ahead,
from the tokens of the step before. Beside them: transformers' own continuous batching.
"""

import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers

from baton.model.gpu.gpu_runner import GpuRunner
from bench.gpu.gpu_machine import Rates, Stopwatch
from bench.gpu.gpu_report import Cell, Table
from bench.gpu.gpu_subject import WAYS, Subject, Way

_WARM_UP_STEPS = 3
_FUSED_GRAPH = WAYS[-1]
_MAX_RATIO = 1.5  # of the modules' own error, which is rounding


def measure_steps(watch: Stopwatch, subject: Subject, rates: Rates) -> list[Table]:
    """Tables of decode steps, of one prefill step, and of what capturing graphs costs."""
    name = subject.name
    decode = Table(f"steps_{name}", f"Decode step, {name}, context {subject.plan.context}", [])
    decode.columns = ["way", *(f"ms at batch {batch}" for batch in subject.plan.batches)]
    prefill = Table(
        f"prefill_{name}",
        f"Prefill step of {subject.plan.prefill_tokens} tokens, {name}",
        ["way", "ms", "TFLOP/s", "of product rate"],
    )
    capture = Table(
        f"capture_{name}", f"Capturing decode steps, {name}", ["way", "graphs", "s", "MiB"]
    )
    for way in WAYS:
        runner, cost = _made(subject, way)
        if way.has_graphs:
            capture.rows.append([way.name, *cost])
        times = [_decode_ms(watch, runner, subject, batch) for batch in subject.plan.batches]
        decode.rows.append([way.name, *times])
        if way is _FUSED_GRAPH:
            times = [_ahead_ms(watch, runner, subject, batch) for batch in subject.plan.batches]
            decode.rows.append([f"{way.name}, ahead", *times])
        if not way.has_graphs:
            prefill.rows.append([way.name, *_prefill(watch, runner, subject, rates)])
        del runner
        free_memory()
    limits = [subject.limit_s(batch, rates) for batch in subject.plan.batches]
    decode.rows.append(["limit", *(limit * 1e3 for limit in limits)])
    best = [min(float(row[i + 1] or 0) for row in decode.rows[:-1]) for i in range(len(limits))]
    shares = [limit * 1e3 / ms for limit, ms in zip(limits, best, strict=True)]
    decode.rows.append(["of the limit, best way", *shares])
    return [decode, prefill, capture]


def _made(subject: Subject, way: Way) -> tuple[GpuRunner, list[Cell]]:
    """A runner, and what its graphs cost: how many, seconds, MiB."""
    runner = subject.runner(Way(way.name, is_fused=way.is_fused, has_graphs=False))
    if not way.has_graphs:
        return runner, []
    before = _used_bytes()
    started = time.perf_counter()
    runner.capture_graphs()
    seconds = time.perf_counter() - started
    return runner, [runner.num_graphs, seconds, (_used_bytes() - before) / 2**20]


def _decode_ms(watch: Stopwatch, runner: GpuRunner, subject: Subject, batch: int) -> float:
    step = partial(runner.run, subject.decode_batch(batch))
    watch.wall_seconds(step, _WARM_UP_STEPS)
    return median(watch.wall_seconds(step, subject.plan.num_steps)) * 1e3


def _ahead_ms(watch: Stopwatch, runner: GpuRunner, subject: Subject, batch: int) -> float:
    """Milliseconds of a step that is launched before the one before it is awaited."""
    first = subject.decode_batch(batch)
    following = replace(first, tokens_from=np.arange(batch, dtype=np.int32))
    under_way = deque([runner.launch(first)])

    def step() -> None:
        under_way.append(runner.launch(following))
        under_way.popleft()()

    watch.wall_seconds(step, _WARM_UP_STEPS)
    return median(watch.wall_seconds(step, subject.plan.num_steps)) * 1e3


def _prefill(
    watch: Stopwatch, runner: GpuRunner, subject: Subject, rates: Rates
) -> tuple[float, float, float]:
    """ms, TFLOP/s, share of the rate of products."""
    step, num_tokens = partial(runner.run, subject.prefill_batch()), subject.plan.prefill_tokens
    watch.wall_seconds(step, 2)
    seconds = median(watch.wall_seconds(step, 5))
    flops = 2.0 * subject.shape.num_layer_weights * num_tokens
    flops += subject.shape.attention_flops(num_tokens * (num_tokens + 1) / 2)
    return seconds * 1e3, flops / seconds / 1e12, flops / seconds / rates.flops


def measure_gaps(watch: Stopwatch, subject: Subject) -> Table:
    """Measure the share of a decode step in which the GPU idles, by torch's profiler."""
    columns = ["batch", "ms of a step", "ms of kernels and copies", "idle"]
    table = Table(f"gaps_{subject.name}", f"Idle time between steps, {subject.name}", columns)
    if not watch.is_gpu:
        table.notes.append("Needs a GPU.")
        return table
    runner = subject.runner(_FUSED_GRAPH)
    for batch in subject.plan.batches:
        step = partial(runner.run, subject.decode_batch(batch))
        watch.wall_seconds(step, _WARM_UP_STEPS)
        step_ms = median(watch.wall_seconds(step, subject.plan.num_steps)) * 1e3
        busy_ms = _busy_seconds(step, subject.plan.num_steps) / subject.plan.num_steps * 1e3
        table.rows.append([batch, step_ms, busy_ms, 1 - busy_ms / step_ms])
    return table


def _busy_seconds(call: Callable[[], object], num_runs: int) -> float:
    """The time of the device's work in so many runs, added up."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(num_runs):
            call()
        torch.cuda.synchronize()
    return sum(float(event.self_device_time_total) for event in profile.key_averages()) / 1e6


def check_invariance(subject: Subject) -> Table:
    """Check whether a sequence's logits depend on the number of others in its step."""
    columns = ["batch", "padded to", "largest difference to batch 1", "same likeliest token"]
    title = f"A sequence alone and in a batch, {subject.name}, fused, decode"
    table = Table(f"invariance_{subject.name}", title, columns)
    runner = subject.runner(_FUSED_GRAPH)
    alone = runner.logits(subject.decode_batch(1))[0].clone()
    for batch in subject.plan.batches[1:]:
        logits = runner.logits(subject.decode_batch(batch))[0]
        difference = float((logits - alone).abs().max())
        is_same = int(logits.argmax()) == int(alone.argmax())
        table.rows.append([batch, runner.decode_size(batch), difference, str(is_same)])
    if not torch.isfinite(alone).all():
        table.errors.append("logits are not finite")
    table.notes.append(
        "Both are rounding: attention is cut by the whole batch, and cuBLAS takes another kernel "
        "for another number of rows."
    )
    return table


def measure_mixed(watch: Stopwatch, subject: Subject) -> Table:
    """Steps with drafts or chunks: as they are, and captured."""
    columns = ["new tokens", "sequences", "ms as it is", "ms captured", "ratio"]
    title = f"Steps with drafts or chunks, {subject.name}, context {subject.plan.context}"
    table = Table(f"mixed_{subject.name}", title, columns)
    runner = subject.runner(WAYS[2])
    times: list[float] = []
    for is_captured in (False, True):
        if is_captured:
            runner.capture_graphs()
        for counts in subject.plan.mixed:
            step = partial(runner.run, subject.mixed_batch(list(counts)))
            watch.wall_seconds(step, _WARM_UP_STEPS)
            times.append(median(watch.wall_seconds(step, subject.plan.num_steps)) * 1e3)
    half = len(subject.plan.mixed)
    for counts, plain, captured in zip(subject.plan.mixed, times[:half], times[half:], strict=True):
        table.rows.append([sum(counts), len(counts), plain, captured, plain / captured])
    return table


@torch.inference_mode()
def check_ways(subject: Subject) -> Table:
    """Check that no way to run a step is further from float32 than transformers' modules."""
    columns = ["way", "batch", "relative difference to float32"]
    table = Table(f"ways_{subject.name}", f"Logits by way, {subject.name}", columns)
    size = subject.plan.batches[1]
    batch = subject.decode_batch(size)
    cache = torch.empty(
        size * subject.blocks_per_seq,
        subject.loaded.kv_spec.row_bytes,
        dtype=torch.uint8,
        device=subject.device,
    )
    cache.view(subject.plan.dtype).normal_()
    exact = subject.exact_logits(batch, cache)
    limit = 0.0
    for way in WAYS:
        runner = subject.runner(way)
        runner.pool.rows[: len(cache)] = cache
        difference = float((runner.logits(batch) - exact).norm() / exact.norm())
        limit = limit or max(_MAX_RATIO * difference, 1e-4)
        table.rows.append([way.name, size, difference])
        if not difference < limit:
            table.errors.append(f"{way.name} differs by {difference:.2g}")
        del runner
        free_memory()
    return table


def measure_peer(subject: Subject) -> Table:
    """transformers' continuous batching: the mean step between a shorter and a longer run."""
    columns = ["batch", "ms of a decode step"]
    title = f"transformers' continuous batching, {subject.name}, context {subject.plan.context}"
    table = Table(f"peer_{subject.name}", title, columns)
    model: Any = subject.loaded.model
    model.set_attn_implementation("sdpa")
    for batch in subject.plan.peer_batches:
        rng = np.random.default_rng(batch)
        size = (batch, subject.plan.context)
        prompts = rng.integers(0, subject.shape.vocab_size, size).tolist()
        _generate(model, prompts, subject.plan.peer_tokens[0])
        shorter, longer = (_generate(model, prompts, n) for n in subject.plan.peer_tokens)
        num_steps = subject.plan.peer_tokens[1] - subject.plan.peer_tokens[0]
        table.rows.append([batch, (longer - shorter) / num_steps * 1e3])
    return table


def _generate(model: Any, prompts: list[list[int]], num_tokens: int) -> float:
    """Seconds of one whole run."""
    config = transformers.GenerationConfig(  # type: ignore[no-untyped-call,unused-ignore]
        max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    started = time.perf_counter()
    outputs = model.generate_batch(prompts, generation_config=config, progress_bar=False)
    assert len(outputs) == len(prompts), "some requests failed"
    return time.perf_counter() - started


def _used_bytes() -> int:
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
