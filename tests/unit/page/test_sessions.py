"""Sessions of the page's visitors on virtual time."""

import itertools

import pytest

from services.page import sessions
from services.page.sessions import NoToken, Sessions, TooManyAttempts, WrongToken

TOKEN = "a-token-of-twenty-chars"


class Visitors:
    """Sessions with a clock and a token that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.token = TOKEN
        ids = itertools.count()
        self.sessions = Sessions(
            lambda: self.token, 3600.0, lambda: self.now_s, lambda: f"id-{next(ids)}"
        )


def test_who_shows_the_token_has_a_session_until_it_expires_or_is_ended() -> None:
    visitors = Visitors()
    first, second = visitors.sessions.begin(TOKEN), visitors.sessions.begin(f" {TOKEN}\n")
    assert first != second
    visitors.sessions.end(second)
    assert [visitors.sessions.is_open(each) for each in (first, second, "", "id-9")] == [
        True, False, False, False,
    ]  # fmt: skip
    visitors.now_s += 3600.0
    assert not visitors.sessions.is_open(first)


def test_another_token_ends_all_sessions() -> None:
    visitors = Visitors()
    old = visitors.sessions.begin(TOKEN)
    visitors.token = "another-token-of-twenty"
    assert not visitors.sessions.is_open(old)
    # The Secret cannot be read for a moment.
    visitors.token = ""
    assert not visitors.sessions.is_open(old)


@pytest.mark.parametrize("token", ["", "short"])
def test_without_a_usable_token_nobody_gets_in(token: str) -> None:
    visitors = Visitors()
    visitors.token = token
    with pytest.raises(NoToken):
        visitors.sessions.begin(token)


def test_wrong_tokens_are_counted_and_then_even_the_right_one_waits() -> None:
    visitors = Visitors()
    for _ in range(sessions.MAX_WRONG):
        visitors.now_s += 1
        with pytest.raises(WrongToken):
            visitors.sessions.begin("wrong")
    with pytest.raises(TooManyAttempts) as refused:
        visitors.sessions.begin(TOKEN)
    assert refused.value.wait_s == sessions.WINDOW_S - sessions.MAX_WRONG + 1
    visitors.now_s += refused.value.wait_s
    assert visitors.sessions.is_open(visitors.sessions.begin(TOKEN))


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    visitors = Visitors()
    opened = [visitors.sessions.begin(TOKEN) for _ in range(sessions.MAX_SESSIONS + 1)]
    assert [visitors.sessions.is_open(each) for each in opened[:2]] == [False, True]
    assert visitors.sessions.is_open(opened[-1])
