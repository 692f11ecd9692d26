"""The engine under the faults: Baton's own, or vLLM's with `BATON_CHAOS_ENGINE=vllm`.

Limits are the same. What differs is what an engine promises: Baton's, told to be deterministic,
computes the same bits beside any other request; vLLM's is held to the same text.
"""

import os

ENGINE = os.environ.get("BATON_CHAOS_ENGINE", "baton")
IS_VLLM = ENGINE == "vllm"
OPTIONS = ("--engine", "vllm") if IS_VLLM else ("--deterministic",)
CORE_MODULE = f"tests.chaos.poison.{'vllm_core' if IS_VLLM else 'core'}"
# Until a worker has loaded, on a busy machine: one with vLLM imports half a gigabyte first.
START_TIMEOUT_S = 900 if IS_VLLM else 240
# How far a logprob may lie from that of an undisturbed answer.
LOGPROB_TOLERANCE = 1e-3 if IS_VLLM else 0.0
