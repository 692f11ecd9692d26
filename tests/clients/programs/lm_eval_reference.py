"""The loglikelihoods of texts behind their contexts, as transformers computes them, in float32.

Reads pairs of texts as JSON, and writes numbers. It runs in Baton's own environment.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(path: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    told = []
    for context, text in json.load(sys.stdin):
        whole = tokenizer(context + text, return_tensors="pt")["input_ids"]
        num_context = len(tokenizer(context)["input_ids"])
        with torch.inference_mode():
            logprobs = model(whole).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(1, whole[0, 1:, None])[num_context - 1 :]
        told.append(picked.sum().item())
    print(json.dumps(told))


main(sys.argv[1])
