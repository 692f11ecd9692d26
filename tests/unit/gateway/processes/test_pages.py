from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from baton.runtime.admin import encoder
from services.gateway.processes.pages import merged_metrics

FIRST = b"""# HELP asked Questions
# TYPE asked counter
asked_total{model="a b{c}"} 3.0
# HELP open Now
# TYPE open gauge
open 2.0
"""
SECOND = b"""# HELP open Now
# TYPE open gauge
open 5.0
# HELP asked Questions
# TYPE asked counter
asked_total{model="a b{c}"} 4.0
"""


def test_the_samples_of_a_metric_stand_together_and_name_their_process() -> None:
    assert merged_metrics({1: FIRST, 2: SECOND}).decode().splitlines() == [
        "# HELP asked Questions",
        "# TYPE asked counter",
        'asked_total{process="1",model="a b{c}"} 3.0',
        'asked_total{process="2",model="a b{c}"} 4.0',
        "# HELP open Now",
        "# TYPE open gauge",
        'open{process="1"} 2.0',
        'open{process="2"} 5.0',
    ]


def test_without_processes_the_page_is_empty() -> None:
    assert merged_metrics({}) == b""


def test_exemplars_are_kept_when_pages_in_openmetrics_become_one() -> None:
    encode, _ = encoder("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")

    def page(trace_id: str) -> bytes:
        registry = CollectorRegistry()
        Counter("asked", "Questions", registry=registry).inc(exemplar={"trace_id": trace_id})
        times = Histogram("waited", "Times", ["model"], registry=registry, buckets=[1])
        times.labels("a b{c} # {").observe(0.5, {"trace_id": trace_id})
        return encode(registry)

    pages = {1: page("one"), 2: page("two")}
    assert "# EOF" not in merged_metrics(pages).decode()
    whole = (merged_metrics(pages) + encode(CollectorRegistry())).decode()
    found = {
        (sample.name, sample.labels["process"], sample.exemplar.labels["trace_id"])
        for family in text_string_to_metric_families(whole)
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {
        (name, process, trace_id)
        for name in ("asked_total", "waited_bucket")
        for process, trace_id in (("1", "one"), ("2", "two"))
    }
