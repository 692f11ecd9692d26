"""What an engine with vLLM has no room for now."""

from typing import Any

import pytest

from baton.engines.vllm.admission import MAX_WAITING, find_lack
from baton.testing.engine_driver import add_sequence


@pytest.mark.parametrize(
    ("num_taken", "is_quiet", "is_refused"),
    [(31, False, False), (32, False, True), (32, True, False), (33, True, False), (34, True, True)],
)
def test_a_full_batch_takes_in_the_requests_of_quiet_tenants_that_routers_send(
    num_taken: int, is_quiet: bool, is_refused: bool
) -> None:
    add = add_sequence(1, range(8), kind="remote", is_quiet=is_quiet)
    assert (find_lack(add, 32, num_taken, 0) is not None) == is_refused


@pytest.mark.parametrize(
    ("fields", "num_waiting", "reason"),
    [({"kind": "remote"}, 0, "no_room"), ({}, MAX_WAITING, "overloaded")],
)
def test_what_is_used_up_is_the_reason(
    fields: dict[str, Any], num_waiting: int, reason: str
) -> None:
    lack = find_lack(add_sequence(1, range(8), **fields), 32, 32, num_waiting)
    assert lack is not None
    assert lack.reason == reason
