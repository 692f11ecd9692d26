"""The collector that spans, metrics and logs go to, from OpenTelemetry's variables."""

import os
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import urlsplit

from baton.runtime.otlp.span_headers import span_headers


class ExporterOptions(TypedDict):
    """What each of OpenTelemetry's exporters over gRPC is opened with."""

    endpoint: str
    insecure: bool
    headers: dict[str, str]
    channel_options: Any


def endpoint_of(environment: Mapping[str, str] = os.environ) -> str:
    """The collector's URL; empty without one: then nothing is exported."""
    return environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def exporter_options() -> ExporterOptions:
    """TLS to https://, the headers, and no proxy to a receiver on this machine. Raises
    SettingsError."""
    endpoint = endpoint_of()
    is_local = urlsplit(endpoint).hostname in ("127.0.0.1", "::1", "localhost")
    return {
        "endpoint": endpoint,
        "insecure": endpoint.startswith("http://"),
        "headers": span_headers(os.environ),
        "channel_options": (("grpc.enable_http_proxy", 0),) if is_local else None,
    }


def is_exported(signal: str) -> bool:
    """True if OTEL_METRICS_EXPORTER or OTEL_LOGS_EXPORTER asks for `signal` to be sent to the
    collector: not by default, because metrics are scraped and logs are read from stderr. Raises
    ValueError for what is neither otlp nor none."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    chosen = os.environ.get(variable, "") or "none"
    if chosen not in ("otlp", "none"):
        raise ValueError(f"{variable}: {chosen!r} is neither otlp nor none")
    if chosen == "otlp" and not endpoint_of():
        raise ValueError(f"{variable}: otlp needs OTEL_EXPORTER_OTLP_ENDPOINT")
    return chosen == "otlp"
