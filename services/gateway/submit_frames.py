"""A submit as frames: a long prompt continues in further ones."""

from collections.abc import Iterator

from baton.wire.v1 import worker_pb2

# A frame may hold 1 MiB; ids and hashes of one part stay well below.
PART_TOKENS = 131_072
_TOKEN_BYTES = 4
_HASH_BYTES = 16


def submit_frames(submit: worker_pb2.Submit) -> Iterator[worker_pb2.GatewayFrame]:
    """The submit and, for a long prompt, its continuation."""
    ids, hashes = submit.prompt_ids, submit.block_hashes
    part_bytes, num_parts = PART_TOKENS * _TOKEN_BYTES, -(-len(ids) // (PART_TOKENS * _TOKEN_BYTES))
    hash_bytes = -(-len(hashes) // _HASH_BYTES // max(num_parts, 1)) * _HASH_BYTES
    submit.prompt_ids, submit.block_hashes = ids[:part_bytes], hashes[:hash_bytes]
    yield worker_pb2.GatewayFrame(submit=submit)
    for index in range(1, num_parts):
        part = worker_pb2.PromptPart(
            handle=submit.handle,
            prompt_ids=ids[index * part_bytes : (index + 1) * part_bytes],
            block_hashes=hashes[index * hash_bytes : (index + 1) * hash_bytes],
        )
        yield worker_pb2.GatewayFrame(prompt_part=part)
