"""A histogram that is cheap to observe is scraped like any other."""

from prometheus_client import CollectorRegistry, Histogram, generate_latest

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
