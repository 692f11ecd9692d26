"""What goes along with every export of spans, a collector's token above all.

`OTEL_EXPORTER_OTLP_HEADERS`, or the file that `BATON_OTLP_HEADERS_FILE` names, is "name=value,..."
with percent-encoded values, as in OpenTelemetry. Values are secrets: no error, log line or
configuration has one. Envoy, which gets its configuration from elsewhere, finds each value in a
variable of its own. Read here, because OpenTelemetry's own reader logs what it does not understand.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from baton.runtime.environment import SettingsError

VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
FILE = "BATON_OTLP_HEADERS_FILE"
_PREFIX = "BATON_SPAN_HEADER_"
# What gRPC takes as text. Without a second form for bytes: names that end in -bin.
_NAME = re.compile(r"[0-9a-z_.-]+(?<!-bin)")
_VALUE = re.compile(r"[ -~]*")


def span_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """By name, in lower case. Raises SettingsError."""
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
    """The variable that gives them, and what it gives."""
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
    """Where an Envoy finds the value of this header."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def envoy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The headers' values, each under its `variable_of`. Raises SettingsError."""
    return {variable_of(name): value for name, value in span_headers(environment).items()}
