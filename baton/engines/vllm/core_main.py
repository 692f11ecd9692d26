"""`python -m baton.engines.vllm.core_main`: the core process of a worker, with vLLM's engine.

Started by the front as Baton's own core is, with the same options, in an environment that has
vLLM. What vLLM cannot do is told to the front in one line; this process then exits.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton.engine.process.core import CoreLink, serve
from baton.system.byte_size import parse_bytes
from baton.system.cores import num_available_cores
from baton.system.crash_trace import leave_stack

# One exact version: parts of vLLM that are not its public interface are used here.
VLLM_VERSION = "0.32.0"
EXIT_CANNOT_SERVE = 3


class CannotServe(Exception):
    """The message is one line for a person."""


def main(argv: Sequence[str]) -> int:
    """Load, then step until the front says Shutdown or is gone. Returns the exit code."""
    leave_stack()
    link, rest = CoreLink.from_argv(argv)
    options = parse_options(rest)
    _set_environment(options)
    try:
        check(options)
        engine = _build(options, link)
    except (CannotServe, ValueError, OSError) as error:
        link.refuse(_line_of(error))
        return EXIT_CANNOT_SERVE
    serve(link, engine)
    return 0


def _line_of(error: Exception) -> str:
    """The reason in one line. Where vLLM checks its configuration the first line names only the
    class, and the next one begins with the reason."""
    first, *more = str(error).splitlines() or [type(error).__name__]
    reason = more[0].partition(" [type=")[0].strip() if more else ""
    return f"{first}: {reason}" if "validation error" in first and reason else first


def check(options: argparse.Namespace) -> None:
    """Raises CannotServe for an option that is not served here, or another vLLM."""
    asked = {
        "deterministic": options.deterministic == "on",
        "device": options.device == "cuda",
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise CannotServe(f"{name}: not served by the engine vllm {VLLM_VERSION}")
    try:
        from vllm.version import __version__ as installed
    except ImportError as error:
        raise CannotServe(f"engine vllm: {sys.executable} has no vLLM: {error}") from None
    if installed.partition("+")[0] != VLLM_VERSION:
        raise CannotServe(f"engine vllm: {VLLM_VERSION} is needed, {installed} is installed")
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        raise CannotServe("engine vllm: only vLLM's build for CPUs is served here")


def _set_environment(options: argparse.Namespace) -> None:
    """Variables that vLLM reads when it is imported. The runner is the one that takes the processor
    of `row_choice.py`."""
    fixed = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(1, options.threads // options.tensor_parallel)),
    }
    os.environ.update(fixed)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def _build(options: argparse.Namespace, link: CoreLink) -> Any:
    """Load the model."""
    from vllm.v1.engine.core import EngineCore

    from baton.engine.kv.handoff_rows import num_ring_rows
    from baton.engine.protocol.messages import EngineInfo
    from baton.engines.vllm.adapters import prepare
    from baton.engines.vllm.admission import UNSUPPORTED
    from baton.engines.vllm.engine import VllmEngine, VllmParts
    from baton.engines.vllm.model_facts import end_token_ids, grammar_states, kv_spec_of
    from baton.engines.vllm.pace import StepPace
    from baton.engines.vllm.ranks.executors import OneRank, SeveralRanks, on_fork
    from baton.model.load.tokenizer_file import tokenizer_of
    from baton.system.clock import SystemClock
    from baton.wire.fingerprint import fingerprint_of

    folder = _model_folder(options.model)
    config = _engine_config(options)
    if options.expert_parallel == "on":
        _divide_experts(config.model_config.quantization)
    on_fork(link.leave)
    executor = OneRank if options.tensor_parallel == 1 else SeveralRanks
    core = EngineCore(config, executor, log_stats=True)
    if options.speculation_tokens:
        core.model_executor.check_drafts()
    leave_stack()  # again: a library of vLLM's (tvm_ffi) reports a crash first, for seconds
    name = f"vllm {VLLM_VERSION}"
    num_heads = config.model_config.get_total_num_kv_heads()
    kv_spec = kv_spec_of(core.scheduler.kv_cache_config, num_heads, name)
    # One block of vLLM's, the first, is never given to a sequence.
    num_blocks = core.scheduler.cache_config.num_gpu_blocks - 1
    vocab_size = config.model_config.get_vocab_size()
    end_ids = end_token_ids(config.model_config)
    max_model_len = min(config.model_config.max_model_len, num_blocks * kv_spec.block_size)
    num_rows = num_ring_rows(kv_spec, num_blocks, max_model_len, options.staging_memory)
    digests, tokenizer_file = tokenizer_of(folder, is_verified=options.verify_weights == "on")
    grammars = grammar_states(tokenizer_file, vocab_size, end_ids)
    info = EngineInfo(
        model_fp=fingerprint_of(digests),
        model_name=options.model_name or folder.resolve().name,
        model_revision="local",
        kv_spec=kv_spec,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=options.max_batch,
        vocab_size=vocab_size,
        eos_token_ids=end_ids,
        tokenizer_file=None if grammars is None else str(grammars.compiler.tokenizer_file),
        engine=name,
        unsupported=list(UNSUPPORTED),
        num_adapter_slots=options.adapter_slots,
        num_rows=num_rows,
        model_folder=str(folder),
        file_digests=digests,
    )
    if options.adapter_slots:
        prepare(core)
    pace = StepPace(options.max_step_tokens, options.max_step_ms / 1000 or None)
    parts = VllmParts(core, link.pool_fd, grammars, options.speculation_tokens)
    return VllmEngine(parts, info, pace, SystemClock())


def _model_folder(name: str) -> Path:
    """Raises CannotServe without one."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise CannotServe(f"model {name}: no such folder")
    return folder


def _divide_experts(quantization: str | None) -> None:
    """Raises CannotServe for weights whose kernels take no part of the experts."""
    from baton.engines.vllm.ranks.experts import divide_experts

    if quantization is not None:
        raise CannotServe(f"expert_parallel: vLLM divides no {quantization} experts on CPUs")
    divide_experts()


def _engine_config(options: argparse.Namespace) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.config.kv_events import KVEventsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from baton.engines.vllm.adapters import NUM_EMPTY_PLACES

    package = "baton.engines.vllm"
    num_ranks = options.tensor_parallel  # on CPUs they share one memory
    num_places = options.adapter_slots + NUM_EMPTY_PLACES
    num_drafts = options.speculation_tokens
    drafter = {
        "method": "custom_class",
        "model": f"{package}.ranks.draft_check.NoDrafter",
        "num_speculative_tokens": num_drafts,
    }
    arguments = AsyncEngineArgs(
        model=options.model,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        max_num_seqs=options.max_batch,
        max_num_batched_tokens=options.max_step_tokens,
        kv_cache_memory_bytes=options.kv_memory and options.kv_memory // num_ranks,
        gpu_memory_utilization=options.memory_share / num_ranks,
        tensor_parallel_size=num_ranks,
        enable_expert_parallel=options.expert_parallel == "on",
        enforce_eager=True,
        enable_lora=options.adapter_slots > 0,
        max_loras=num_places,
        max_cpu_loras=num_places,
        max_lora_rank=options.adapter_rank,
        async_scheduling=False,
        enable_prefix_caching=True,
        disable_log_stats=True,
        scheduling_policy="priority",
        scheduler_cls=f"{package}.scheduler.BatonScheduler",
        # Beside drafts vLLM takes none: `check_drafts` adds it then.
        logits_processors=None if num_drafts else [f"{package}.row_choice:RowChoice"],
        speculative_config=drafter if num_drafts else None,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="BatonConnector",
            kv_role="kv_both",
            kv_connector_module_path=f"{package}.ranks.connector",
        ),
    )
    return arguments.create_engine_config()


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """The options after the three descriptors: those of `baton.worker.core_main`."""
    parser = argparse.ArgumentParser(prog="baton.engines.vllm.core_main", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--model-name", default="")
    parser.add_argument("--verify-weights", default="off")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cuda-graphs", default="on")
    parser.add_argument("--deterministic", default="off")
    parser.add_argument("--threads", type=int, default=num_available_cores())
    parser.add_argument("--kv-memory", type=parse_bytes, default=None)
    parser.add_argument("--memory-share", type=float, default=0.8)
    parser.add_argument("--staging-memory", type=parse_bytes, default=None)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--max-step-tokens", type=int, default=2048)
    parser.add_argument("--speculation-tokens", type=int, default=0)
    parser.add_argument("--adapter-slots", type=int, default=0)
    parser.add_argument("--adapter-rank", type=int, default=16)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    parser.add_argument("--nixl-agent", default="")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--expert-parallel", default="off")
    return parser.parse_args(argv)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking vLLM apart would hold up a worker that leaves
