"""The paths of lm-eval: tasks of a local file, over completions in batches, and over chats.

What a text's loglikelihood is, transformers says (lm_eval_reference.py).
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OPENAI_API_KEY": os.environ["API_KEY"],
    "HF_HOME": tempfile.mkdtemp(),
}

import lm_eval
from questions import BASE_URL, MODEL, QUESTION, report

DEMO_MODEL = Path(__file__).parents[3] / "baton" / "demo_model"
REFERENCE = Path(__file__).with_name("lm_eval_reference.py")
CHOICES = ["The KV cache of a prompt", "A queue", " tokens are the output"]
DOCS = [
    {"question": QUESTION, "choices": CHOICES, "answer": 0},
    {"question": "A prefill worker", "choices": CHOICES, "answer": 1},
    {"question": "Why are output tokens dearer?", "choices": CHOICES[::-1], "answer": 2},
]
BATCH_SIZE = 4
# Of a sum of logprobs, between float32 and a worker's bfloat16.
TOLERANCE = 0.35


def evaluate(kind: str, url: str, task: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """What lm-eval finds on one task, with a sample for each document."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "docs.jsonl"
        path.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}}
        address = {"model": MODEL, "base_url": BASE_URL + url, "max_retries": 1, **arguments}
        return lm_eval.simple_evaluate(
            model=kind,
            model_args={**address, "tokenizer": str(DEMO_MODEL)},
            tasks=[{"task": "local", "test_split": "test", "num_fewshot": 0, **data, **task}],
            apply_chat_template="chat" in kind,
            log_samples=True,
            bootstrap_iters=0,
        )


def loglikelihood() -> None:
    """Choices are weighed in batches, and as transformers weighs them."""
    task = {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "choices", "doc_to_target": "answer", "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    found = evaluate("local-completions", "/completions", task, batch_size=BATCH_SIZE)
    samples = found["samples"]["local"]
    told = [answer[0][0] for sample in samples for answer in sample["resps"]]
    pairs = [arguments for sample in samples for arguments in sample["arguments"]]
    expected = subprocess.run(
        [os.environ["REFERENCE_PYTHON"], str(REFERENCE), str(DEMO_MODEL)],
        input=json.dumps([pair[:2] for pair in pairs]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    differences = [
        abs(float(one) - other)
        for one, other in zip(told, json.loads(expected.stdout), strict=True)
    ]
    assert len(differences) == len(DOCS) * len(CHOICES)
    assert max(differences) < TOLERANCE, differences


GENERATION = {
    "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "answer",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip


def generate() -> None:
    """A batch of prompts is one request."""
    found = evaluate("local-completions", "/completions", GENERATION, batch_size=BATCH_SIZE)
    assert len(found["samples"]["local"]) == len(DOCS)


def chat() -> None:
    """lm-eval sends chats one by one, several at a time."""
    found = evaluate("local-chat-completions", "/chat/completions", GENERATION, num_concurrent=3)
    answers = [sample["resps"][0][0] for sample in found["samples"]["local"]]
    assert answers[0].startswith("TTFT is the time to first token"), answers


report("local-completions", {"loglikelihood": loglikelihood, "generate": generate})
report("local-chat-completions", {"chat": chat})
