"""Answers of vLLM itself, without Baton: one prompt alone with each adapter, or with none.

Run by the interpreter that has vLLM, and nothing of the tests' own. Reads the prompt, the adapters'
folders and the sizes of the cores under test, and writes the tokens, as JSON.
"""

import json
import os
import sys


def main(model: str) -> None:
    """Answer greedily, one after the other."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    asked = json.load(sys.stdin)
    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        enable_lora=True,
        block_size=asked["block_size"],
        max_model_len=asked["max_model_len"],
        kv_cache_memory_bytes=20 * 2**20,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=asked["num_tokens"], ignore_eos=True)
    answers = []
    for number, folder in enumerate(asked["adapters"], 1):
        adapter = LoRARequest(folder, number, folder) if folder else None
        prompt = {"prompt_token_ids": asked["prompt"]}
        (output,) = llm.generate([prompt], sampling, lora_request=adapter, use_tqdm=False)
        answers.append(list(output.outputs[0].token_ids))
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
