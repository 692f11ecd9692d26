"""Stop strings in pieces of text."""

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.text.stop_strings import StopMatcher, StopPattern


def matcher(*stops: str) -> StopMatcher:
    return StopMatcher(tuple(StopPattern.of(stop) for stop in stops))


def run(pieces: list[str], *stops: str) -> tuple[str, bool]:
    following = matcher(*stops)
    sent = ""
    for piece in pieces:
        sent += following.feed(piece)
        if following.done:
            return sent, True
    return sent + following.flush(), False


def test_a_stop_string_over_three_pieces_is_never_sent() -> None:
    assert run(["ab<", "|en", "d|>cd"], "<|end|>") == ("ab", True)


def test_text_that_only_began_like_a_stop_string_is_sent_later() -> None:
    following = matcher("END")
    assert following.feed("xEN") == "x"
    assert following.feed("x") == "ENx"
    assert not following.done


def test_held_text_is_flushed_at_the_end() -> None:
    assert run(["abEN"], "END") == ("abEN", False)


def test_the_longest_of_two_stop_strings_that_end_together_is_cut() -> None:
    assert run(["xaab"], "ab", "aab") == ("x", True)


def test_a_stop_string_with_an_own_border_is_found_after_a_false_start() -> None:
    assert run(list("aabaabaac"), "aabaac") == ("aab", True)


def test_a_border_of_a_border_counts_too() -> None:
    assert run(["aabaaabaaaa"], "aabaaaa") == ("aaba", True)


def test_every_stop_string_is_found_behind_each_of_its_own_beginnings() -> None:
    stops = ("".join(chars) for size in range(1, 9) for chars in product("ab", repeat=size))
    for stop in stops:
        for length in range(len(stop)):
            text = stop[:length] + stop
            assert run([text], stop) == (text[: text.find(stop)], True), (text, stop)


@given(
    text=st.text("ab", max_size=40),
    stops=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
def test_any_cutting_gives_the_text_before_the_first_complete_stop_string(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    sent, stopped = run(pieces, *stops)
    if not ends:
        assert (sent, stopped) == (text, False)
        return
    longest = max(len(stop) for stop in stops if text[: min(ends)].endswith(stop))
    assert (sent, stopped) == (text[: min(ends) - longest], True)
