"""transformers without a server, as a runner: `python transformers_offline.py FOLDER MODE THREADS`.

MODE is `generate` (one padded batch) or `continuous` (its continuous batching). Imports nothing of
Baton; tasks and answers as in vllm_offline.py.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import transformers

# Room for 65,536 tokens.
PAGE_SIZE, NUM_PAGES = 256, 256
MAX_BATCH_TOKENS = 2048


def main() -> None:
    folder, mode, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model.eval()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"versions": versions, "threads": threads}), file=answers, flush=True)
    run = {"generate": generate, "continuous": generate_continuously}[mode]
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        num_output_tokens = run(model, task["prompts"], task["num_output_tokens"])
        wall_s = time.perf_counter() - started
        answer = {"wall_s": wall_s, "num_output_tokens": num_output_tokens}
        print(json.dumps(answer), file=answers, flush=True)


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], num_output_tokens: int) -> int:
    """Prompts of one length, so that nothing is padded."""
    inputs = torch.tensor(prompts)
    outputs = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=num_output_tokens,
        min_new_tokens=num_output_tokens,
        do_sample=False,
    )
    return (int(outputs.shape[1]) - inputs.shape[1]) * len(prompts)


def generate_continuously(model: Any, prompts: list[list[int]], num_output_tokens: int) -> int:
    """With a pool of a stated size: by itself it would take most of the machine's memory."""
    config = transformers.GenerationConfig(  # type: ignore[no-untyped-call,unused-ignore]
        max_new_tokens=num_output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    batching = transformers.ContinuousBatchingConfig(
        page_size=PAGE_SIZE, num_blocks=NUM_PAGES, max_batch_tokens=MAX_BATCH_TOKENS
    )
    outputs = model.generate_batch(
        prompts,
        generation_config=config,
        continuous_batching_config=batching,
        persistent_manager=True,
        progress_bar=False,
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


if __name__ == "__main__":
    main()
