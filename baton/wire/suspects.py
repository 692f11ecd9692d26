"""Suspects, requests that may have killed a core: their fingerprint, and when one is harmless.

A suspect computes in steps of its own, alternating with those of all other requests, until it has
brought NUM_TOKENS_ALONE tokens beyond those it came with. A core that dies in such a step was
killed by it (decision 0032). Knows no engine and no gateway.
"""

import hashlib
import hmac
from collections.abc import Iterable

# Counted after the prompt, and after the tokens that it had when a core died with it.
NUM_TOKENS_ALONE = 4
_PURPOSE = b"baton request fingerprint v1"


def request_fingerprint(server_secret: bytes, parts: Iterable[bytes]) -> bytes:
    """32 bytes that are equal for requests of equal parts and reveal nothing of them."""
    mac = hmac.new(server_secret, _PURPOSE, hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()
