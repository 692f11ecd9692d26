"""Limits that two processes must share: one refuses what the other would not take.

A limit that only one process knows stands in that process. What a client may send at most is in
`services/gateway/openai/limits.py`.
"""

# --- the head of an HTTP request, at Envoy and at the gateway ---
MAX_HEAD_KIB = 60
MAX_HEADERS = 100

# --- a request's options, at the gateway, the router and the workers ---
MAX_CHOICES = 128
# Most likely tokens that are reported of one token.
MAX_LOGPROBS = 20
# Tokens with a logit bias.
MAX_BIASES = 1024
# The exponent of a beam search's lengths; beyond it powers of lengths overflow.
MAX_LENGTH_PENALTY = 10.0
# A schema or grammar as the client wrote it, which with the prompt has to fit into one frame.
MAX_GRAMMAR_CHARS = 128 * 1024
# The same on the wire, where JSON's escapes may have made it longer.
MAX_WIRE_GRAMMAR_CHARS = 2 * MAX_GRAMMAR_CHARS

# --- blocks, at the tokenizer, the router and the workers ---
MAX_BLOCK_SIZE = 1024

# --- poison requests, at the gateway and the router ---
# Cores that a request's steps may kill before it is refused.
MAX_DEATHS = 2
# A quarantine that ends sooner is not passed on: it would only travel in circles.
MIN_QUARANTINE_S = 5.0
