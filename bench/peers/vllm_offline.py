"""vLLM without HTTP, as a runner: `python vllm_offline.py MODEL_FOLDER KV_GIB THREADS`.

Executed by the Python of vLLM's own environment; imports nothing of Baton. Reads one JSON task a
line, {"prompts": [[token, ...], ...], "num_output_tokens": n}, and answers with one.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    folder, kv_gib, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # vLLM logs to stdout: answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = kv_gib
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    import vllm  # type: ignore[import-not-found,unused-ignore]

    llm = vllm.LLM(model=folder, dtype="bfloat16", max_model_len=2048, seed=0)
    ready = {
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        "threads": threads,
    }
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(vllm, llm, json.loads(line))), file=answers, flush=True)


def run(vllm: Any, llm: Any, task: dict[str, Any]) -> dict[str, Any]:
    prompts = [{"prompt_token_ids": ids} for ids in task["prompts"]]
    sampling = vllm.SamplingParams(
        max_tokens=task["num_output_tokens"], ignore_eos=True, temperature=0.0, detokenize=False
    )
    started = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    wall_s = time.perf_counter() - started
    num_output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"wall_s": wall_s, "num_output_tokens": num_output_tokens}


if __name__ == "__main__":
    main()
