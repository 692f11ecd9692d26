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
