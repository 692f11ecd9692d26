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

from baton.engine.grammar.states import GrammarStates
from baton.engine.process.core import CoreLink, serve
from baton.engine.protocol.messages import EngineInfo
from baton.system.byte_size import parse_bytes
from baton.system.cores import num_available_cores
from baton.system.crash_trace import leave_stack
from baton.system.load_progress import LoadStage, LoadTeller, Tell
from baton.wire.fingerprint import FileDigests, fingerprint_of

# One exact version: parts of vLLM that are not its public interface are used here.
VLLM_VERSION = "0.32.0"
EXIT_CANNOT_SERVE = 3
_UNPROVEN = "engine vllm on a GPU: UNPROVEN, this path has never run on one (docs/engines.md)"


class CannotServe(Exception):
    """The message is one line for a person."""


def main(argv: Sequence[str]) -> int:
    """Load, then step until the front says Shutdown or is gone. Returns the exit code."""
    leave_stack()
    link, rest = CoreLink.from_argv(argv)
    options = parse_options(rest)
    _set_environment(options)
    tell = LoadTeller().tell
    tell(LoadStage("import of vLLM"))
    try:
        check(options)
        engine = _build(options, link, tell)
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
    if options.deterministic == "on":
        raise CannotServe(f"deterministic: not served by the engine vllm {VLLM_VERSION}")
    try:
        from vllm.version import __version__ as installed
    except ImportError as error:
        raise CannotServe(f"engine vllm: {sys.executable} has no vLLM: {error}") from None
    if installed.partition("+")[0] != VLLM_VERSION:
        raise CannotServe(f"engine vllm: {VLLM_VERSION} is needed, {installed} is installed")
    _check_device(options)


def _check_device(options: argparse.Namespace) -> None:
    from vllm.platforms import current_platform

    build = str(current_platform.device_type)
    if options.device not in ("auto", build):
        raise CannotServe(f"device {options.device}: this vLLM was built for {build}")
    if current_platform.is_cpu():
        return
    if not current_platform.is_cuda():
        raise CannotServe(f"engine vllm: only vLLM's builds for CPUs are served, not for {build}")
    if options.unproven != "on":
        raise CannotServe(
            "engine vllm: only vLLM's build for CPUs is served, for no other was ever run here; "
            "BATON_WORKER_UNPROVEN=on starts this one all the same"
        )
    print(_UNPROVEN, file=sys.stderr, flush=True)


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


def _build(options: argparse.Namespace, link: CoreLink, tell: Tell) -> Any:
    """Load the model, and have each kind of step run once."""
    from baton.engines.vllm.adapters import prepare
    from baton.engines.vllm.engine import VllmEngine, VllmParts
    from baton.engines.vllm.model_facts import end_token_ids, grammar_states
    from baton.engines.vllm.pace import StepPace
    from baton.model.load.tokenizer_file import tokenizer_of
    from baton.system.clock import SystemClock

    folder = _model_folder(options.model)
    core = _load(options, link, tell)
    tell(LoadStage("warm-up"))
    digests, tokenizer_file = tokenizer_of(folder, is_verified=options.verify_weights == "on")
    model = core.vllm_config.model_config
    end_ids = end_token_ids(model)
    grammars = grammar_states(tokenizer_file, model.get_vocab_size(), end_ids)
    info = _describe(options, core, digests, grammars)
    if options.adapter_slots:
        prepare(core)
    pace = StepPace(options.max_step_tokens, options.max_step_ms / 1000 or None)
    parts = VllmParts(core, link.pool_fd, grammars, options.speculation_tokens)
    return VllmEngine(parts, info, pace, SystemClock())


def _load(options: argparse.Namespace, link: CoreLink, tell: Tell) -> Any:
    """vLLM's EngineCore, with its ranks. Raises CannotServe, ValueError."""
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore

    from baton.engines.vllm.ranks.executors import OneRank, SeveralRanks, on_fork
    from baton.engines.vllm.ranks.rank_main import START_METHOD

    is_cpu = current_platform.is_cpu()
    start_method = os.environ.get(START_METHOD) or ("fork" if is_cpu else "spawn")
    config = _engine_config(options)
    is_eager = config.model_config.enforce_eager
    tell(LoadStage("weights" if is_eager else "weights, compilation of steps"))
    os.environ[START_METHOD] = start_method  # vLLM has set it, on CPUs to spawn
    if options.expert_parallel == "on" and is_cpu:
        _check_experts(config.model_config.quantization)
    on_fork(link.leave)
    executor = OneRank if options.tensor_parallel == 1 else SeveralRanks
    core = EngineCore(config, executor, log_stats=True)
    if options.speculation_tokens:
        core.model_executor.check_drafts()
    leave_stack()  # again: a library of vLLM's (tvm_ffi) reports a crash first, for seconds
    return core


def _describe(
    options: argparse.Namespace, core: Any, digests: FileDigests, grammars: GrammarStates | None
) -> EngineInfo:
    """What the front is told of the model that was loaded."""
    from vllm.platforms import current_platform

    from baton.engine.kv.handoff_rows import num_ring_rows
    from baton.engines.vllm.admission import UNSUPPORTED
    from baton.engines.vllm.model_facts import end_token_ids, kv_spec_of, page_order_of

    name, folder = f"vllm {VLLM_VERSION}", _model_folder(options.model)
    model, cache = core.vllm_config.model_config, core.vllm_config.cache_config
    caches = core.scheduler.kv_cache_config
    order = page_order_of(caches, cache.cache_dtype, is_cpu=current_platform.is_cpu())
    kv_spec = kv_spec_of(caches, model.get_total_num_kv_heads(), name, order)
    # One block of vLLM's, the first, is never given to a sequence.
    num_blocks = core.scheduler.cache_config.num_gpu_blocks - 1
    max_model_len = min(model.max_model_len, num_blocks * kv_spec.block_size)
    return EngineInfo(
        model_fp=fingerprint_of(digests),
        model_name=options.model_name or folder.resolve().name,
        model_revision="local",
        kv_spec=kv_spec,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=options.max_batch,
        vocab_size=model.get_vocab_size(),
        eos_token_ids=end_token_ids(model),
        tokenizer_file=None if grammars is None else str(grammars.compiler.tokenizer_file),
        engine=name,
        unsupported=list(UNSUPPORTED),
        num_adapter_slots=options.adapter_slots,
        num_rows=num_ring_rows(kv_spec, num_blocks, max_model_len, options.staging_memory),
        model_folder=str(folder),
        file_digests=digests,
    )


def _model_folder(name: str) -> Path:
    """Raises CannotServe without one."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise CannotServe(f"model {name}: no such folder")
    return folder


def _check_experts(quantization: str | None) -> None:
    """Raises CannotServe for weights whose kernels for CPUs take no part of the experts."""
    if quantization is not None:
        raise CannotServe(f"expert_parallel: vLLM divides no {quantization} experts on CPUs")


def _engine_config(options: argparse.Namespace) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.config.kv_events import KVEventsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    from baton.engines.vllm.adapters import NUM_EMPTY_PLACES
    from baton.engines.vllm.ranks.compilation import is_compiled

    package = "baton.engines.vllm"
    num_ranks = options.tensor_parallel
    # On CPUs they share one memory, a GPU has its own; the KV memory is the worker's.
    num_sharing = num_ranks if current_platform.is_cpu() else 1
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
        gpu_memory_utilization=options.memory_share / num_sharing,
        tensor_parallel_size=num_ranks,
        enable_expert_parallel=options.expert_parallel == "on",
        enforce_eager=not is_compiled(options.compile, is_cpu=current_platform.is_cpu()),
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
    parser.add_argument("--unproven", default="off")
    parser.add_argument("--compile", default="auto")
    return parser.parse_args(argv)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking vLLM apart would hold up a worker that leaves
