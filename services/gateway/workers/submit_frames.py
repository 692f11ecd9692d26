"""A submit as frames: one that is too long for a frame continues in further ones."""

from collections.abc import Iterator

from baton.wire.prefix_hash import HASH_BYTES, TOKEN_BYTES
from baton.wire.v1 import worker_pb2

# A frame may hold 1 MiB; ids and hashes of one part stay well below.
PART_TOKENS = 131_072
# Output tokens of earlier attempts that fit in beside a part of the prompt.
MAX_EMITTED_BYTES = 128 * 1024


def submit_frames(submit: worker_pb2.Submit) -> Iterator[worker_pb2.GatewayFrame]:
    """The submit and its continuations, of which the last one ends the prompt."""
    prompt = list(_split(submit.prompt_ids, submit.block_hashes))
    emitted: list[worker_pb2.EmittedTokens] = []
    if sum(len(each.token_ids) for each in submit.emitted) > MAX_EMITTED_BYTES:
        emitted.extend(submit.emitted)
        del submit.emitted[:]
        prompt.insert(0, (b"", b""))
    submit.prompt_ids, submit.block_hashes = prompt.pop(0)
    yield worker_pb2.GatewayFrame(submit=submit)
    for each in emitted:
        for ids, _ in _split(each.token_ids, b""):
            piece = worker_pb2.EmittedTokens(choice=each.choice, token_ids=ids)
            part = worker_pb2.PromptPart(handle=submit.handle, emitted=[piece])
            yield worker_pb2.GatewayFrame(prompt_part=part)
    for ids, hashes in prompt:
        part = worker_pb2.PromptPart(handle=submit.handle, prompt_ids=ids, block_hashes=hashes)
        yield worker_pb2.GatewayFrame(prompt_part=part)


def _split(ids: bytes, hashes: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Cut token ids and block hashes into parts that fit in a frame; at least one part."""
    part_bytes = PART_TOKENS * TOKEN_BYTES
    num_parts = max(-(-len(ids) // part_bytes), 1)
    hash_bytes = -(-len(hashes) // HASH_BYTES // num_parts) * HASH_BYTES
    for index in range(num_parts):
        yield (
            ids[index * part_bytes : (index + 1) * part_bytes],
            hashes[index * hash_bytes : (index + 1) * hash_bytes],
        )
