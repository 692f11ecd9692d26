"""Counters whose labels are known begin at 0."""

import pytest
from prometheus_client import REGISTRY, Counter

from baton.runtime import instruments
from baton.runtime.instruments import KNOWN_SERIES, Series, begin_known
from baton.worker.instruments import DECODE_SERIES, PREFILL_SERIES
from services.edge import instruments as edge
from services.gateway import instruments as gateway
from services.gateway.request.picks import RETRIED_REASONS
from services.quota import instruments as quota
from services.router import instruments as router


def value_of(counter: Counter, values: tuple[str, ...]) -> float | None:
    named = dict(zip(counter._labelnames, values, strict=True))
    return REGISTRY.get_sample_value(f"{counter._name}_total", named)


@pytest.mark.parametrize(
    "known",
    [
        gateway.KNOWN_SERIES,
        quota.KNOWN_SERIES,
        router.KNOWN_SERIES,
        edge.KNOWN_SERIES,
        DECODE_SERIES,
        PREFILL_SERIES,
    ],
)
def test_a_service_begins_with_its_counters_at_0(known: Series) -> None:
    begin_known(known)
    for counter, labels in {**KNOWN_SERIES, **known}.items():
        for values in labels:
            assert value_of(counter, values) is not None


def test_a_service_without_such_counters_begins_with_those_of_every_process() -> None:
    begin_known({})
    assert value_of(instruments.SPANS_DROPPED, ("queue_full",)) is not None


def test_every_reason_for_which_a_stream_may_move_is_known() -> None:
    for counter in (gateway.GATEWAY_MIGRATIONS, gateway.GATEWAY_REPEATED_PICKS):
        known = gateway.KNOWN_SERIES[counter]
        assert {reason for (reason,) in known} == RETRIED_REASONS
