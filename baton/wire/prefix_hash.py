"""The one keyed prefix hash (decision 0028), shared by tokenizer, router and workers.

A prompt's full blocks form a chain: each hash covers everything before it. The key belongs to one
tenant (and client salt), so no tenant can hit or guess another one's blocks. Test vectors are in
tests/unit/wire/prefix_hash_vectors.json. Knows nothing of caches or services.
"""

import hmac
from functools import lru_cache
from hashlib import blake2b, sha256

HASH_BYTES = 16
CACHE_KEY_BYTES = 32
TOKEN_BYTES = 4
_MAX_CACHE_KEYS = 4096


@lru_cache(_MAX_CACHE_KEYS)
def derive_cache_key(server_secret: bytes, tenant: str, client_salt: str = "") -> bytes:
    """The opaque 32-byte key that separates one tenant's cache from all others. Never log it."""
    message = tenant.encode() + b"\0" + client_salt.encode()
    return hmac.digest(server_secret, message, sha256)[:CACHE_KEY_BYTES]


def root_hash(model_fp: str, block_size: int, cache_key: bytes, adapter: str = "") -> bytes:
    """The hash before the first block, the root of a chain.

    `model_fp` stands for model and revision: it covers weights, tokenizer and template.
    """
    root = blake2b(key=cache_key, digest_size=HASH_BYTES)
    for text in (model_fp, adapter):
        data = text.encode()
        root.update(len(data).to_bytes(4, "little") + data)
    root.update(block_size.to_bytes(4, "little"))
    return root.digest()


def next_hash(parent: bytes, block_tokens: bytes, cache_key: bytes) -> bytes:
    """The hash of one full block; `block_tokens` is u32 little-endian, block_size tokens."""
    return blake2b(parent + block_tokens, key=cache_key, digest_size=HASH_BYTES).digest()


def block_hashes(root: bytes, token_ids: bytes, block_size: int, cache_key: bytes) -> bytes:
    """The hashes of all full blocks of `token_ids` (u32 little-endian), HASH_BYTES each."""
    num_bytes = block_size * TOKEN_BYTES
    hashes = bytearray()
    parent = root
    for start in range(0, len(token_ids) - num_bytes + 1, num_bytes):
        parent = next_hash(parent, token_ids[start : start + num_bytes], cache_key)
        hashes += parent
    return bytes(hashes)


def short_hash(block_hash: bytes) -> int:
    """The last 8 bytes of a hash as a number: the form of the router's index and of digests."""
    return int.from_bytes(block_hash[-8:], "little")


def split_hashes(hashes: bytes) -> list[bytes]:
    """Cut a concatenation of hashes into single ones."""
    if len(hashes) % HASH_BYTES:
        raise ValueError(f"{len(hashes)} bytes are not a whole number of {HASH_BYTES}-byte hashes")
    return [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
