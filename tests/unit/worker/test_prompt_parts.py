import pytest

from baton.wire.failures import InvalidRequest
from baton.worker.prompt import MAX_PART_BYTES, PromptBuffer, split_prompt


@pytest.mark.parametrize("num_tokens", [1, 16, 200_000])
def test_a_split_prompt_is_whole_again_after_its_last_part(num_tokens: int) -> None:
    ids, hashes = b"\1\2\3\0" * num_tokens, b"h" * 16 * (num_tokens // 16)
    buffer = PromptBuffer(num_tokens, max_tokens=num_tokens)
    deps = list(split_prompt(ids, hashes))

    for part_ids, part_hashes in deps:
        assert not buffer.is_complete
        buffer.add(part_ids, part_hashes)

    assert buffer.is_complete
    assert (buffer.token_ids, buffer.block_hashes) == (ids, hashes)
    assert all(len(part_ids) <= MAX_PART_BYTES for part_ids, _ in deps)


def test_a_prompt_longer_than_the_context_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(InvalidRequest, match="exceed the context length of 100"):
        PromptBuffer(101, max_tokens=100)


def test_more_tokens_or_hashes_than_announced_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more tokens"):
        PromptBuffer(1, 100).add(b"12345678", b"")
    with pytest.raises(InvalidRequest, match="more block hashes"):
        PromptBuffer(1, 100).add(b"1234", b"h" * 32)
