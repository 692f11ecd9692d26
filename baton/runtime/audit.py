"""Reports of violated invariants: one metric, one log line with the request's id, nothing else.

An auditor periodically checks books that a service keeps anyway. Between two awaits an owner and
what it owns may disagree for a moment, so a periodic check reports only what it finds twice in a
row. A violation never stops the service: that is the operator's decision (docs/reliability.md).
"""

import asyncio
from collections.abc import Callable, Iterable

from baton.runtime import instruments, logs
from baton.system.violation import Violation

LOOK_EVERY_S = 5.0
# Each violation is reported once; this many of the newest are remembered.
MAX_REMEMBERED = 4096

_log = logs.get("audit")


class Audit:
    """The violations of one process."""

    def __init__(self) -> None:
        self._suspected: set[tuple[str, str]] = set()
        self._reported: dict[Violation, None] = {}

    def found(self, violations: Iterable[Violation]) -> None:
        """Report each violation that is new."""
        for violation in violations:
            if violation in self._reported:
                continue
            self._reported[violation] = None
            if len(self._reported) > MAX_REMEMBERED:
                del self._reported[next(iter(self._reported))]
            instruments.AUDIT_VIOLATIONS.labels(violation.check).inc()
            _log.error(
                "audit_violation",
                check=violation.check,
                request_id=violation.request_id,
                detail=violation.detail,
            )

    def look(self, violations: Iterable[Violation]) -> None:
        """Take what a periodic check found; report what the check before found as well."""
        seen = {(violation.check, violation.request_id): violation for violation in violations}
        self.found(violation for key, violation in seen.items() if key in self._suspected)
        self._suspected = set(seen)

    async def run(self, check: Callable[[], Iterable[Violation]]) -> None:
        """Check every LOOK_EVERY_S until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look(check())
