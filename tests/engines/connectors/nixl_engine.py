"""A program: one vLLM EngineCore with vLLM's own NIXL connector, driven line by line.

`VLLM_PYTHON nixl_engine.py OPTIONS`, OPTIONS a JSON object: model, connector, block_size, kv_bytes,
port. Reads JSON lines: {"add": id, "prompt": [...], "salt": "...", "num_tokens": n, "params": {}},
{"abort": id}, {"free": true}. Writes {"free": n} and, when a request ends, {"id", "tokens",
"params"}. Imports nothing of Baton.
"""

import contextlib
import importlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

_IDLE_S = 0.01


def main() -> None:
    options = json.loads(sys.argv[1])
    # vLLM logs to stdout: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    set_environment(options)
    alias_nixl()
    core = build(options)
    tell(answers, {"free": num_free(core)})
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    serve(core, lines, answers)


def set_environment(options: dict[str, Any]) -> None:
    fixed = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(options["port"]),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "1",
        # Between hosts: in shared memory a process that stands still can be read all the same.
        "UCX_TLS": "tcp",
    }
    os.environ.update(fixed)


def alias_nixl() -> None:
    """NIXL's package is called after a version of CUDA; vLLM imports it without that."""
    for name in ("", "._api", "._bindings"):
        sys.modules[f"nixl{name}"] = importlib.import_module(f"nixl_cu12{name}")


def build(options: dict[str, Any]) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    arguments = AsyncEngineArgs(
        model=options["model"],
        dtype="float32",
        max_model_len=640,
        block_size=options["block_size"],
        max_num_seqs=8,
        kv_cache_memory_bytes=options["kv_bytes"],
        enforce_eager=True,
        async_scheduling=False,
        disable_log_stats=True,
        kv_transfer_config=KVTransferConfig(
            kv_connector=options["connector"],
            kv_role="kv_both",
            kv_buffer_device="cpu",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"push_registration_timeout": 8},
        ),
    )
    config = arguments.create_engine_config()
    return EngineCore(config, Executor.get_class(config), log_stats=False)


def read_lines(lines: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def serve(core: Any, lines: "queue.SimpleQueue[str]", answers: Any) -> None:
    """vLLM's own busy loop, in short."""
    tokens: dict[str, list[int]] = {}
    while True:
        has_work = core.scheduler.has_requests()
        with contextlib.suppress(queue.Empty):
            while True:
                apply(core, json.loads(lines.get(timeout=0 if has_work else _IDLE_S)), answers)
                has_work = True
        if not has_work:
            continue
        outputs, has_run = core.step_fn()
        core.post_step(has_run)
        for each in outputs.values() if outputs else ():
            for output in each.outputs:
                note(output, tokens, answers)
        if not has_run:
            time.sleep(_IDLE_S)


def note(output: Any, tokens: dict[str, list[int]], answers: Any) -> None:
    told = tokens.setdefault(output.request_id, [])
    told += output.new_token_ids
    if output.finish_reason is not None:
        reason = str(output.finish_reason)
        done = {"id": output.request_id, "tokens": told, "reason": reason}
        tell(answers, {**done, "params": output.kv_transfer_params})


def apply(core: Any, command: dict[str, Any], answers: Any) -> None:
    if "free" in command:
        tell(answers, {"free": num_free(core)})
    elif "abort" in command:
        core.abort_requests([command["abort"]])
    else:
        core.add_request(*core.preprocess_add_request(request_of(command)))


def request_of(command: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    params = command.get("params")
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=command["num_tokens"],
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={"kv_transfer_params": params} if params else None,
    )
    return EngineCoreRequest(
        request_id=command["add"],
        prompt_token_ids=command["prompt"],
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=command["salt"],
        data_parallel_rank=None,
    )


def num_free(core: Any) -> int:
    return int(core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def tell(answers: Any, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main()
