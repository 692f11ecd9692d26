"""The identity that all of a process's spans, metrics and logs carry.

OpenTelemetry's own variables, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, add to it and go
before it. So the chart says which pod this is, and an operator what else a backend should know.
"""

from importlib.metadata import PackageNotFoundError, version
from urllib.parse import quote

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

# In a backend that several systems share, a service called "router" would be anybody's.
_PREFIX = "baton-"


def service_resource(service: str) -> Resource:
    """The resource of a process of this service; `service.instance.id` is a new one for each."""
    own = {
        "service.name": service_name(service),
        "service.namespace": "baton",
        "service.version": _version(),
    }
    # What comes last goes before the rest, and the variables come last.
    return Resource.create(own).merge(OTELResourceDetector().detect())


def resource_text(service: str) -> str:
    """The same but for the name, as a process of another program reads it from its variable."""
    pairs = service_resource(service).attributes.items()
    return ",".join(
        f"{key}={quote(str(value))}"
        for key, value in pairs
        if key != "service.name" and not key.startswith("telemetry.")
    )


def service_name(service: str) -> str:
    """The name of a service in spans, metrics and logs: of `decode_worker`, baton-decode-worker."""
    return _PREFIX + service.replace("_", "-")


def _version() -> str:
    try:
        return version("baton-serving-core")
    except PackageNotFoundError:
        return "unknown"
