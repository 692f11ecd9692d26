"""Limits that two processes must share: one refuses requests that the other would not take.

A limit of a single process stands in that process. The limits of a client's body are in
`services/gateway/openai/limits.py`.
"""

# --- the head of an HTTP request, at Envoy and at the gateway ---
MAX_HEAD_KIB = 60
MAX_HEADERS = 100

# --- a request's options, at the gateway, the router and the workers ---
MAX_CHOICES = 128
# The number of most likely tokens that are reported for one position.
MAX_LOGPROBS = 20
# The number of tokens with a logit bias.
MAX_BIASES = 1024
# The exponent of a beam search's lengths; above it powers of lengths overflow.
MAX_LENGTH_PENALTY = 10.0
# The length of a client's schema or grammar, which with the prompt has to fit into one frame.
MAX_GRAMMAR_CHARS = 128 * 1024
# The same on the wire, where JSON's escapes may have made it longer.
MAX_WIRE_GRAMMAR_CHARS = 2 * MAX_GRAMMAR_CHARS

# --- blocks, at the tokenizer, the router and the workers ---
MAX_BLOCK_SIZE = 1024

# --- the batch of a decode worker, at the router and the worker ---
# A full batch takes in one request of a quiet tenant for each so many slots, and one if it has so
# few. The steps stay as large: what is least important misses some until an answer ends (decision
# 0065).
_SLOTS_PER_EXTRA = 16
_LEAST_SLOTS_OF_EXTRA = 4


def num_extra_slots(num_slots: int) -> int:
    """The requests of quiet tenants for which a batch of so many slots has room when it is full."""
    return max(num_slots // _SLOTS_PER_EXTRA, int(num_slots >= _LEAST_SLOTS_OF_EXTRA))


# --- LoRA adapters, at the workers and the router ---
# Those that one worker serves; more are left aside.
MAX_ADAPTERS = 256
# The largest rank of a worker's adapters is one of these, which vLLM knows.
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

# --- zones, at the router and the workers ---
MAX_ZONE_CHARS = 64
# Other zones from which a worker tells the speed of handoffs.
MAX_ZONES = 16

# --- poison requests, at the gateway, the router and the workers ---
# The number of cores that a request's steps may kill before it is refused.
MAX_DEATHS = 2
# A quarantine that ends sooner is not passed on: it would only circulate.
MIN_QUARANTINE_S = 5.0
# A suspect, which may have killed a core, computes in steps of its own until it has brought so many
# tokens beyond its prompt and those that it had when a core died with it (decision 0032).
NUM_TOKENS_ALONE = 4
# Between tokens of JSON that a grammar enforces: nothing, one space, or a line break and so many
# blanks. A model must not fill its output with white space.
JSON_WHITE_SPACE = r" |\n[ \t]{0,32}"
