import json
from pathlib import Path

import pytest

from baton.wire.prefix_hash import (
    block_hashes,
    derive_cache_key,
    next_hash,
    root_hash,
    split_hashes,
)

VECTORS = json.loads((Path(__file__).parent / "prefix_hash_vectors.json").read_text())


def token_bytes(token_ids: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in token_ids)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_hash_chain_equals_the_committed_vectors(vector: dict) -> None:
    key = derive_cache_key(bytes.fromhex(vector["secret"]), vector["tenant"], vector["salt"])
    assert key.hex() == vector["cache_key"]
    root = root_hash(vector["model_fp"], vector["block_size"], key, vector["adapter"])
    assert root.hex() == vector["root"]
    hashes = block_hashes(root, token_bytes(vector["token_ids"]), vector["block_size"], key)
    assert [one.hex() for one in split_hashes(hashes)] == vector["hashes"]


def test_only_full_blocks_are_hashed() -> None:
    key = bytes(32)
    root = root_hash("m", 4, key)
    assert block_hashes(root, token_bytes([1, 2, 3]), 4, key) == b""
    assert len(block_hashes(root, token_bytes([1, 2, 3, 4, 5]), 4, key)) == 16


def test_a_block_hash_covers_everything_before_it() -> None:
    key = bytes(32)
    root = root_hash("m", 2, key)
    first = split_hashes(block_hashes(root, token_bytes([1, 2, 3, 4]), 2, key))
    other = split_hashes(block_hashes(root, token_bytes([9, 2, 3, 4]), 2, key))
    assert first[0] == next_hash(root, token_bytes([1, 2]), key)
    assert first[1] != other[1]


def test_tenants_and_salts_never_share_hashes() -> None:
    keys = {
        derive_cache_key(b"s", tenant, salt)
        for tenant, salt in [("a", ""), ("b", ""), ("a", "b"), ("ab", "")]
    }
    assert len(keys) == 4
    roots = {root_hash("m", 16, key) for key in keys}
    assert len(roots) == 4
