"""Metrics of the tokenizer service."""

from prometheus_client import Counter, Histogram

TOKENIZER_STAGE_SECONDS = Histogram(
    "baton_tokenizer_stage_seconds",
    "Time of one stage of encoding a prompt: queue, template, encode, hash",
    ("model_name", "stage"),
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)
TOKENIZER_FAILED_PROMPTS = Counter(
    "baton_tokenizer_failed_prompts", "Prompts that were not encoded, by reason", ("reason",)
)
