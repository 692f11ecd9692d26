"""Counters whose labels are known begin at 0."""

import pytest
from prometheus_client import REGISTRY

from baton.runtime import instruments, known_series
from services.gateway.answering import RETRIED_REASONS


@pytest.mark.parametrize("service", ["gateway", "quota", "router", "decode_worker", "edge"])
def test_a_service_begins_with_its_counters_at_0(service: str) -> None:
    known_series.begin(service)
    for counter, labels in {**known_series.OF_ALL, **known_series.OF_SERVICE[service]}.items():
        for values in labels:
            named = dict(zip(counter._labelnames, values, strict=True))
            assert REGISTRY.get_sample_value(f"{counter._name}_total", named) is not None


def test_a_service_without_such_counters_begins_with_those_of_all() -> None:
    known_series.begin("web")


def test_every_reason_for_which_a_stream_may_move_is_known() -> None:
    for counter in (instruments.GATEWAY_MOVES, instruments.GATEWAY_REPEATED_PICKS):
        known = known_series.OF_SERVICE["gateway"][counter]
        assert {reason for (reason,) in known} == RETRIED_REASONS
