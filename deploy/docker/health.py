"""A container's health check: asks the service that runs here whether it is ready.

Status 0 = ready. The address is that of the service's own settings: `BATON_..._ADMIN_LISTEN`, or
`BATON_ENVOY_METRICS_LISTEN` where Envoy runs. Speaks HTTP, which needs no certificate here.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

_ENVOY = "BATON_ENVOY_METRICS_LISTEN"
_TIMEOUT_S = 5.0


def where() -> tuple[str, str]:
    """Address and path. Raises LookupError when no setting names a port."""
    if _ENVOY in os.environ:
        return os.environ[_ENVOY], "/ready"
    for name, address in os.environ.items():
        if name.startswith("BATON_") and name.endswith("_ADMIN_LISTEN"):
            return address, "/readyz"
    raise LookupError("no BATON_..._ADMIN_LISTEN is set: there is no service to ask")


def main() -> int:
    try:
        address, path = where()
        port = int(address.rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.read(1000).decode(errors="replace").strip())
    except (LookupError, ValueError, OSError, HTTPException) as error:
        print(error)
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
