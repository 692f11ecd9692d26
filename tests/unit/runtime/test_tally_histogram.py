"""A histogram that is cheap to observe is scraped like any other."""

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_of
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from baton.runtime.instruments import TallyHistogram


def test_a_tally_is_scraped_as_the_librarys_own_histogram_is() -> None:
    buckets, values = (0.5, 1, 2.5), (0.1, 0.5, 0.7, 2.5, 9.0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    labels = ("model", "stage")
    tally = TallyHistogram("gap_s", "Gaps", labels, buckets=buckets, registry=ours)
    own = Histogram("gap_s", "Gaps", labels, buckets=buckets, registry=theirs)
    for value in values:
        tally.labels("m", "s").observe(value)
        own.labels("m", "s").observe(value)
    lines = generate_latest(theirs).decode().splitlines()
    assert generate_latest(ours).decode().splitlines() == [
        line for line in lines if "created" not in line
    ]


def test_the_latest_exemplar_of_each_bucket_is_told_in_openmetrics() -> None:
    registry = CollectorRegistry()
    tally = TallyHistogram("gap_s", "Gaps", ("model",), buckets=(1, 2), registry=registry)
    for value, trace_id in ((0.5, "a"), (0.7, "b"), (5.0, "c"), (1.5, "")):
        tally.labels("m").observe(value, {"trace_id": trace_id} if trace_id else None)
    (family,) = text_string_to_metric_families(openmetrics_of(registry).decode())
    told = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert {bound: found.labels["trace_id"] for bound, found in told.items()} == {
        "1.0": "b",
        "+Inf": "c",
    }
    assert told["1.0"].value == 0.7
