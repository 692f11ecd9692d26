"""Who has shown the token: sessions, bounded in number and time, and attempts that are counted.

A session's id is a secret of its browser; here only its digest is kept. Another token ends all
sessions. Knows no HTTP: time and randomness are passed in.
"""

import hmac
from collections import deque
from collections.abc import Callable
from hashlib import sha256

MAX_SESSIONS = 64
# Wrong tokens in a minute, from all visitors together: through a forwarded port, and behind a
# proxy, all of them have one address.
MAX_WRONG = 10
WINDOW_S = 60.0
MIN_TOKEN_CHARS = 20


class WrongToken(Exception):
    """The token is not the one."""


class TooManyAttempts(Exception):
    """Nobody may try again before `wait_s`."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong tokens: try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class NoToken(Exception):
    """There is no token, or none that is long enough, so that nobody gets in."""


class Sessions:
    """The open sessions."""

    def __init__(
        self,
        token: Callable[[], str],
        session_s: float,
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """`token` is the one of now, empty without one; `new_id` makes a random text."""
        self._token = token
        self._session_s = session_s
        self._now = now
        self._new_id = new_id
        # By the digest of a session's id: when it ends, and the digest of its token.
        self._open: dict[bytes, tuple[float, bytes]] = {}
        self._wrong_s: deque[float] = deque()

    def begin(self, shown: str) -> str:
        """Begin a session; returns its id. The oldest ends when there are too many.

        Raises WrongToken, TooManyAttempts and NoToken.
        """
        self._check_attempts()
        digest = self._token_digest()
        if not digest:
            raise NoToken(f"the page has no token of {MIN_TOKEN_CHARS} characters or more")
        if not hmac.compare_digest(_digest(shown.strip()), digest):
            self._wrong_s.append(self._now())
            raise WrongToken("this is not the token")
        while len(self._open) >= MAX_SESSIONS:
            del self._open[next(iter(self._open))]
        session_id = self._new_id()
        self._open[_digest(session_id)] = (self._now() + self._session_s, digest)
        return session_id

    def is_open(self, session_id: str) -> bool:
        """True for a session that has begun with today's token and has not ended."""
        ends_s, digest = self._open.get(_digest(session_id), (0.0, b""))
        return bool(digest) and self._now() < ends_s and digest == self._token_digest()

    def end(self, session_id: str) -> None:
        self._open.pop(_digest(session_id), None)

    def _check_attempts(self) -> None:
        while self._wrong_s and self._now() - self._wrong_s[0] >= WINDOW_S:
            self._wrong_s.popleft()
        if len(self._wrong_s) >= MAX_WRONG:
            raise TooManyAttempts(self._wrong_s[0] + WINDOW_S - self._now())

    def _token_digest(self) -> bytes:
        token = self._token()
        return _digest(token) if len(token) >= MIN_TOKEN_CHARS else b""


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()
