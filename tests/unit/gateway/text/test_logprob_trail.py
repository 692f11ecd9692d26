"""The logprobs of an answer are those of the tokens whose text is in it."""

from tokenizers import Tokenizer

from baton.wire.v1 import worker_pb2
from services.gateway.openai.generation import Delta, TokenLogprob
from services.gateway.text.choice_text import ChoiceText
from services.gateway.text.detokenize import TokenTexts
from services.gateway.text.logprob_trail import MIN_LOGPROB, LogprobTrail
from services.gateway.text.stop_strings import StopMatcher, StopPattern
from services.gateway.text.token_bytes import TokenBytes
from tests.unit.gateway.fake_worker import EOS, told_of
from tests.unit.gateway.fakes import tokenizer_json

STOP_TOKEN = ord("!")
TOKENIZER = Tokenizer.from_str(tokenizer_json().decode())
TOKEN_BYTES = TokenBytes(TOKENIZER, tokenizer_json())


def choice_of(*stops: str, first_offset: int = 0) -> ChoiceText:
    return ChoiceText(
        0,
        TokenTexts(TOKENIZER, []),
        StopMatcher(tuple(StopPattern.of(stop) for stop in stops)) if stops else None,
        frozenset({EOS, STOP_TOKEN}),
        LogprobTrail(TOKEN_BYTES, first_offset),
    )


def take(choice: ChoiceText, text: str | list[int]) -> Delta | None:
    ids = list(text.encode()) if isinstance(text, str) else text
    first = choice.num_tokens
    return choice.take(ids, [told_of(first + place, i, 0) for place, i in enumerate(ids)])


def joined(entries: tuple[TokenLogprob, ...]) -> bytes:
    return b"".join(entry.token for entry in entries)


def test_without_stop_strings_text_passes_at_once() -> None:
    delta = take(choice_of(), "abc")
    assert delta is not None
    assert delta.text == "abc"


def test_logprobs_come_with_their_text_and_say_where_it_starts() -> None:
    delta = take(choice_of(first_offset=10), "abc")
    assert delta is not None
    assert joined(delta.logprobs) == b"abc"
    assert [entry.text_offset for entry in delta.logprobs] == [10, 11, 12]
    assert [entry.logprob for entry in delta.logprobs] == [0.0, -0.5, -1.0]


def test_tokens_of_one_character_wait_for_it_and_share_its_place() -> None:
    choice = choice_of()
    data = list("é😀".encode())
    assert take(choice, data[:1]) is None
    first = take(choice, data[1:4])
    rest = take(choice, data[4:])
    assert first is not None
    assert rest is not None
    assert (first.text, joined(first.logprobs)) == ("é", "é".encode())
    assert (rest.text, joined(rest.logprobs)) == ("😀", "😀".encode())
    assert [entry.text_offset for entry in rest.logprobs] == [1, 1, 1, 1]


def test_tokens_that_a_stop_string_cut_off_have_no_logprobs() -> None:
    choice = choice_of("END")
    first, rest = take(choice, "abEN"), take(choice, "Dxy")
    assert first is not None
    assert rest is not None
    assert (first.text, joined(first.logprobs)) == ("ab", b"ab")
    assert (rest.text, rest.finish_reason, rest.logprobs) == ("", "stop", ())
    assert (choice.num_tokens, choice.num_received) == (5, 7)


def test_text_that_only_looked_like_a_stop_string_brings_its_logprobs_late() -> None:
    choice = choice_of("END")
    assert take(choice, "EN") is None
    delta = take(choice, "X")
    assert delta is not None
    assert (delta.text, joined(delta.logprobs)) == ("ENX", b"ENX")


def test_the_end_token_and_a_stop_token_are_no_part_of_the_answer() -> None:
    for end in (EOS, STOP_TOKEN):
        choice = choice_of()
        delta = take(choice, [ord("a"), end])
        assert delta is not None
        last = choice.finish("stop")
        assert joined(delta.logprobs + last.logprobs) == b"a"
        assert (delta.text + last.text, choice.num_tokens) == ("a", 2)


def test_an_end_token_in_the_middle_stays_where_it_is() -> None:
    choice = choice_of()
    first, rest = take(choice, [ord("a"), EOS]), take(choice, "b")
    assert first is not None
    assert rest is not None
    assert joined(first.logprobs) == b"a"
    assert joined(rest.logprobs) == b"<eos>b"


def test_an_answer_that_ends_in_half_a_character_has_all_its_logprobs() -> None:
    choice = choice_of("zzz")
    take(choice, list(b"a\xf0\x9f"))
    delta = choice.finish("length")
    assert (delta.text, joined(delta.logprobs)) == ("\ufffd", b"\xf0\x9f")


def test_infinity_is_a_number() -> None:
    choice = choice_of()
    told = worker_pb2.TokenLogprobs(
        logprob=float("-inf"), top_ids=[1], top_logprobs=[-float("inf")]
    )
    delta = choice.take([ord("a")], [told])
    assert delta is not None
    assert delta.logprobs[0].logprob == delta.logprobs[0].top[0].logprob == MIN_LOGPROB
