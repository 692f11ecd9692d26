"""Prompts have an exact size, and names alone decide what is in them."""

from bench.workload import KINDS, RequestSize, WordList

WORDS = WordList({f" word{letter}": 100 + index for index, letter in enumerate("abcdefghij")})
SIZE = RequestSize(num_shared=20, num_own=30, num_output=5)


def test_the_compared_work_is_1025_prompt_tokens_of_which_200_are_shared() -> None:
    assert KINDS["full"].num_prompt == 1025
    assert KINDS["full"].num_shared == 200
    assert KINDS["full"].num_output == 150


def test_prompts_share_their_first_tokens_and_nothing_else() -> None:
    one, other = WORDS.prompt_ids("one", SIZE), WORDS.prompt_ids("other", SIZE)
    assert len(one) == len(other) == SIZE.num_prompt
    assert one[:20] == other[:20]
    assert one[20:] != other[20:]


def test_a_name_gives_the_same_prompt_each_time() -> None:
    assert WORDS.prompt_ids("one", SIZE) == WORDS.prompt_ids("one", SIZE)


def test_messages_hold_the_words_of_the_token_ids() -> None:
    messages = WORDS.messages("one", SIZE)
    assert [message["role"] for message in messages] == ["system", "user"]
    spoken = "".join(message["content"] for message in messages).split()
    assert [100 + "abcdefghij".index(word[-1]) for word in spoken] == WORDS.prompt_ids("one", SIZE)


def test_a_request_without_a_shared_part_has_no_system_message() -> None:
    roles = [m["role"] for m in WORDS.messages("one", RequestSize(0, 4, 1))]
    assert roles == ["user"]
