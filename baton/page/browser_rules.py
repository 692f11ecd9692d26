"""What every answer to a browser says, and what a change must show to come from the page itself."""

from collections.abc import Collection

from starlette.requests import Request

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
READS = ("GET", "HEAD")


def foreign(request: Request, schemes: Collection[str] = ("http",)) -> str:
    """The reason why a change is not one that the page itself asks for; empty when it is.

    A form of another site cannot send JSON, and a script of one has its own Origin.
    """
    host = request.headers.get("host", "")
    if request.headers.get("origin") not in {f"{scheme}://{host}" for scheme in schemes}:
        return "a change must come from the page itself"
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    return "" if kind == "application/json" else "send JSON"
