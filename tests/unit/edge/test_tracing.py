import pytest

from baton.runtime.process import Misconfigured
from services.edge.span_cluster import span_cluster
from services.edge.tracing import tracing_of

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert tracing_of({}) is None


def test_spans_go_in_plaintext_or_over_tls_as_the_endpoint_says() -> None:
    plain = tracing_of({ENDPOINT: "http://collector:4317", "OTEL_TRACES_SAMPLER_ARG": "0.1"})
    assert plain is not None
    assert (plain.endpoint, plain.percent, plain.transport) == ("collector:4317", 10, None)
    tls = tracing_of({ENDPOINT: "https://collector:4317"})
    assert tls is not None
    assert tls.transport is not None


def test_envoy_gets_the_names_of_headers_and_not_their_values() -> None:
    told = tracing_of(
        {ENDPOINT: "https://collector:4317", "OTEL_EXPORTER_OTLP_HEADERS": "x-token=hunter2"}
    )
    assert told is not None
    assert told.header_names == ("x-token",)
    cluster = bytes(span_cluster(told))
    assert b"%ENVIRONMENT(BATON_SPAN_HEADER_X_TOKEN)%" in cluster
    assert b"hunter2" not in cluster


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({ENDPOINT: "http://collector"}, r"http\[s\]://host:port"),
        ({ENDPOINT: "grpc://collector:4317"}, "not 'grpc://collector:4317'"),
        (
            {ENDPOINT: "https://c:1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.crt"},
            "CERTIFICATE: .*/nowhere/ca.crt",
        ),
    ],
)
def test_what_envoy_cannot_dial_is_refused(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        tracing_of(variables)
