"""What vLLM counts of itself beyond Baton's own numbers; part of `messages.py`.

A worker exports it under vLLM's names (`worker/metrics.py`).
"""

import msgspec


class VllmStats(msgspec.Struct, array_like=True):
    """The state of vLLM's scheduler, and what happened there since the last report."""

    # Waiting requests: those that only lack capacity, and those that could not start if there was
    # some.
    num_waiting: int = 0
    num_deferred: int = 0
    # By stage of a load of KV from elsewhere, as vLLM names them.
    num_kv_fetches: dict[str, int] = {}
    # The adapters of requests that run and that wait, by fingerprint.
    running_adapters: list[str] = []
    waiting_adapters: list[str] = []
    # Tokens that were looked for at other workers, and those that came from there.
    num_external_queries: int = 0
    num_external_hits: int = 0
    # Prompt tokens of sequences that got their first token, by where their KV came from.
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_handed_over_tokens: int = 0
    # One entry for each prompt whose first token came: the tokens that were computed of it.
    computed_prompts: list[int] = []
    # One entry for each ended answer: how often it was preempted.
    preemptions: list[int] = []
