"""A program for an environment with vLLM: the tokens that its logits processor leaves, as JSON.

By the host's ways to sample, and by the kernels for devices, in Triton's interpreter. The same rows
are sampled for: plain, sampled with limits, with a mask, penalties, a bias, choices and drafts.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate

from baton.engine.protocol.messages import Fork, Grammar, SamplingParams
from baton.engines.vllm.row_choice import EXTRA_KEY, RowChoice, RowOptions
from baton.model.gpu.triton.sampling import DEVICE_OPS
from baton.model.sampling.row_sampler import SamplingOps

VOCAB = 600
END = 7
NUM_STEPS = 6
ROWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 1},
    "with limits": {"temperature": 1.3, "seed": 2, "top_k": 30, "top_p": 0.8, "min_p": 0.01},
    "with a mask": {"temperature": 1.0, "seed": 3, "grammar": Grammar("json_object")},
    "greedy with a mask": {"grammar": Grammar("json_object")},
    "with penalties": {"temperature": 0.8, "seed": 4, "presence_penalty": 0.7},
    "with repetition": {"repetition_penalty": 1.4, "frequency_penalty": 0.3},
    "with a bias": {"logit_bias": ((11, 40.0),)},
    "with a minimum": {"temperature": 0.7, "seed": 5, "min_tokens": 50},
    "with choices": {"temperature": 1.1, "seed": 6, "num_logprobs": 2},
}
FORKS = (Fork(101, 1), Fork(102, 2))


def tokens_of(ops: SamplingOps) -> dict[str, Any]:
    """What is chosen for each row, step by step, with a draft in every other step."""
    config = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": END},
        hf_config=SimpleNamespace(to_dict=dict),
        get_vocab_size=lambda: VOCAB,
    )
    choice = RowChoice(SimpleNamespace(model_config=config), torch.device("cpu"), False, ops)
    options = {name: _options(number, name) for number, name in enumerate(ROWS)}
    outputs: dict[str, list[int]] = {name: [] for name in ROWS}
    added = [
        (index, SimpleNamespace(extra_args={EXTRA_KEY: options[name]}), [3, 5, 3, 9], outputs[name])
        for index, name in enumerate(ROWS)
    ]
    choice.update_state(BatchUpdate(len(ROWS), [], added, []))
    generator = torch.Generator().manual_seed(0)
    for step in range(NUM_STEPS):
        drafts = [(4, 3)[: step % 3]] * len(ROWS)
        num_rows = sum(1 + len(draft) for draft in drafts)
        logits = torch.randn(num_rows, VOCAB, generator=generator) * 2
        logits[:, END] += 4
        choice.apply_behind(logits, drafts)
        chosen = logits.argmax(-1).view(len(ROWS), -1)
        for index, name in enumerate(ROWS):
            outputs[name].extend(chosen[index].tolist())
        choice.update_state(None)
    first = {seq_id: token for seq_id, (token, _) in options["with choices"].first_tokens.items()}
    return {**outputs, "first tokens": first}


def _options(number: int, name: str) -> RowOptions:
    sampling = SamplingParams(max_tokens=64, **ROWS[name])
    has_choices = name == "with choices"
    num_emitted = 0 if has_choices else 1  # choices are for the first token alone
    options = RowOptions(number, 0, sampling, num_emitted, FORKS if has_choices else ())
    if sampling.grammar is not None:
        words = np.random.default_rng(number).integers(0, 2**31, -(-VOCAB // 32), np.int32)
        options.mask = words
    return options


if __name__ == "__main__":
    json.dump([tokens_of(SamplingOps()), tokens_of(DEVICE_OPS)], sys.stdout)
