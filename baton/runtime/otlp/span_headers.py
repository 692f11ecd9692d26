"""The headers of every export of spans, such as a collector's token.

`OTEL_EXPORTER_OTLP_HEADERS`, or the file that `BATON_OTLP_HEADERS_FILE` names, is "name=value,..."
with percent-encoded values, as in OpenTelemetry. Values are secrets: no error, log line or
configuration contains one. Envoy, whose configuration comes from the control plane, finds each
value in a variable of its own. Not left to OpenTelemetry's own reader, which logs what it does not
understand.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from baton.runtime.environment import SettingsError

VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
FILE = "BATON_OTLP_HEADERS_FILE"
_PREFIX = "BATON_SPAN_HEADER_"
# Names that gRPC sends as text. A name that ends in -bin would be one of bytes.
_NAME = re.compile(r"[0-9a-z_.-]+(?<!-bin)")
_VALUE = re.compile(r"[ -~]*")


def span_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """The headers by name, in lower case. Raises SettingsError."""
    headers = {}
    variable, text = _given(environment)
    for number, entry in enumerate(text.split(","), start=1):
        if not entry.strip():
            continue
        name, equals, value = (unquote(part).strip() for part in entry.partition("="))
        if not (equals and _NAME.fullmatch(name.lower()) and _VALUE.fullmatch(value)):
            raise SettingsError(f"{variable}: entry {number} is not name=value, or not in ASCII")
        headers[name.lower()] = value
    return headers


def _given(environment: Mapping[str, str]) -> tuple[str, str]:
    """The variable that gives the headers, and its text. Raises SettingsError."""
    if not (file := environment.get(FILE, "")):
        return VARIABLE, environment.get(VARIABLE, "")
    if environment.get(VARIABLE):
        raise SettingsError(f"{FILE}: {VARIABLE} is set, too")
    try:
        return FILE, Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingsError(f"{FILE}: {file}: {reason}") from None


def variable_of(name: str) -> str:
    """The variable in which an Envoy finds the value of a header."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def envoy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The headers' values, each under its `variable_of`. Raises SettingsError."""
    return {variable_of(name): value for name, value in span_headers(environment).items()}
