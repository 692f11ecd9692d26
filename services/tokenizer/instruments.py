"""Metrics of the tokenizer service."""

from prometheus_client import Counter, Gauge, Histogram

TOKENIZER_STAGE_SECONDS = Histogram(
    "baton_tokenizer_stage_seconds",
    "Time of one stage of encoding a prompt: queue, template, encode, hash",
    ("model_name", "stage"),
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)
TOKENIZER_FAILED_PROMPTS = Counter(
    "baton_tokenizer_failed_prompts", "Prompts that were not encoded, by reason", ("reason",)
)
TOKENIZER_MODELS = Gauge(
    "baton_tokenizer_models",
    "Models (fingerprints) by what this tokenizer has of them: loading, loaded, refused",
    ("model_name", "state"),
)
TOKENIZER_FAILED_FETCHES = Counter(
    "baton_tokenizer_failed_fetches",
    "Fetches of a model's files from a worker that failed or brought other files",
    ("model_name",),
)
