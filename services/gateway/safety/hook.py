"""The operator's safety service behind a time limit, and what holds while it does not answer."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from baton.runtime import logs
from baton.wire.failures import BatonError, Unavailable
from services.gateway import instruments

_log = logs.get("safety")


class Judge(Protocol):
    """The operator's service."""

    async def judge(self, texts: Sequence[str]) -> bool:
        """True when one of the texts must not be read or written. Raises BatonError."""

    async def close(self) -> None:
        """Close its connections."""


class SafetyHook:
    """Asks the service about texts."""

    def __init__(self, judge: Judge, timeout_s: float, *, fails_open: bool) -> None:
        """`fails_open`: texts pass while the service does not answer."""
        self._judge = judge
        self._timeout_s = timeout_s
        self._fails_open = fails_open

    async def refuses(self, part: str, texts: Sequence[str]) -> bool:
        """True when the service refuses one of these texts of a request's part (prompt, answer).
        Raises Unavailable when it does not answer and that does not let them pass."""
        checks = instruments.GATEWAY_SAFETY_CHECKS
        try:
            async with asyncio.timeout(self._timeout_s):
                is_refused = await self._judge.judge(texts)
        except (BatonError, TimeoutError) as error:
            checks.labels(part, "failed").inc()
            _log.warning("safety_hook_failed", part=part, error=str(error)[:200] or "too slow")
            if self._fails_open:
                return False
            message = "the safety check of this server does not answer"
            raise Unavailable(message, reason="safety_unavailable", retry_after_s=1) from error
        checks.labels(part, "refused" if is_refused else "passed").inc()
        return is_refused

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._judge.close()
