"""Reports of violations: counted and logged once."""

import asyncio

import pytest

from baton.runtime import instruments
from baton.runtime.audit import Audit
from baton.system.violation import Violation
from baton.testing.virtual_clock import run_virtual

STRAY = Violation("sequence_without_attempt", "r7", "sequence 3")


def told(check: str = STRAY.check) -> float:
    return instruments.AUDIT_VIOLATIONS.labels(check)._value.get()


def test_a_violation_is_counted_and_logged_with_its_request_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, audit = told(), Audit()
    audit.found([STRAY])
    audit.found([STRAY])
    assert told() - before == 1


def test_a_periodic_check_reports_only_what_it_finds_twice_in_a_row() -> None:
    before, audit = told(), Audit()
    audit.look([STRAY])
    audit.look([])
    audit.look([STRAY])
    assert told() == before
    audit.look([STRAY])
    audit.look([STRAY])
    assert told() - before == 1


def test_the_check_is_repeated_and_outlives_what_it_finds() -> None:
    async def main() -> None:
        before, looks = told("lease_without_request"), []

        def check() -> list[Violation]:
            looks.append(1)
            return [Violation("lease_without_request", f"r{len(looks) // 2}", "")]

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Audit().run(check))
            await asyncio.sleep(60)
            running.cancel()
        assert len(looks) >= 10
        assert told("lease_without_request") > before

    run_virtual(main())
