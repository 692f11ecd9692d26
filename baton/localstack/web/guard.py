"""Who may speak to the local page: a browser of this machine's user, on the page itself.

The page acts with the developer's key and may end workers. Loopback alone keeps out neither other
users of the machine nor other sites in the user's browser. So names in Host other than this
machine's are refused (DNS rebinding), what changes anything must come from the page's own origin as
JSON (cross-site request forgery), and where the kernel tells whose socket the caller's is, it must
be the user's or root's (decision 0089).
"""

import os
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.page.browser_rules import HEADERS, READS, foreign

LOCAL_HOSTS = ["127.0.0.1", "localhost"]
_SOCKETS = Path("/proc/net/tcp")
_ESTABLISHED = "01"


class Guard:
    """ASGI middleware: answers what may be answered, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = refusal(Request(scope)) if scope["type"] == "http" else ""
        answer = PlainTextResponse(reason, 403) if reason else self._app
        await answer(scope, receive, send_guarded)


def refusal(request: Request) -> str:
    """The reason why this is not answered; empty when it is."""
    if not request.scope["path"].startswith("/api/"):
        return ""
    if request.method not in READS and (reason := foreign(request)):
        return reason
    client, server = request.client, request.scope.get("server")
    if client is None or server is None:
        return ""
    if not belongs_to_user(client.host, client.port, int(server[1])):
        return "this page answers only the user who runs the stack"
    return ""


def belongs_to_user(host: str, port: int, server_port: int) -> bool:
    """True if the calling socket is this process's user's, or root's; also where no kernel tells.

    Only an open connection counts: one that was closed after its request has no owner any more.
    """
    try:
        rows = _SOCKETS.read_text().splitlines()[1:]
    except OSError:
        return True
    return owner_of(rows, host, port, server_port) in (os.getuid(), 0)


def owner_of(rows: Iterable[str], host: str, port: int, server_port: int) -> int | None:
    """The user id of the calling socket, from rows of /proc/net/tcp; None when it is not there."""
    address = bytes(int(part) for part in host.split("."))[::-1].hex().upper()
    caller, called = f"{address}:{port:04X}", f":{server_port:04X}"
    for row in rows:
        fields = row.split()
        if fields[1] == caller and fields[2].endswith(called) and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None
