"""JSON over HTTP for the few requests before a test. Not for load."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from loadtest.deployment import DeploymentError, Fetch

_TIMEOUT_S = 60.0
_MAX_SHOWN_BYTES = 300


def fetcher(host: str, api_key: str) -> Fetch:
    """A Fetch for the server at `host` (without /v1)."""

    def fetch(path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(host.rstrip("/") + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            details = error.read(_MAX_SHOWN_BYTES).decode(errors="replace")
            raise DeploymentError(f"{host}{path} answers {error.code}: {details}") from error
        except (OSError, ValueError) as error:
            raise DeploymentError(f"{host}{path} does not answer: {error}") from error

    return fetch
