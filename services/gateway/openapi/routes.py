"""/openapi.json, and /docs: a page that shows it, without a key and without another server."""

from functools import cached_property
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.http.request import JSON, OWN_HEADERS_KEY
from services.gateway.openapi.document import document

PATHS = ("/openapi.json", "/docs")


class DescriptionApi:
    """Serves the description of the API, which is built when it is first asked for."""

    def __init__(self, *, has_store: bool) -> None:
        self._has_store = has_store

    def routes(self) -> list[Route]:
        """The paths."""
        return [
            Route(path, serve) for path, serve in zip(PATHS, (self._json, self._page), strict=True)
        ]

    async def _json(self, request: Request) -> Response:
        headers = request.scope[OWN_HEADERS_KEY]
        return Response(self._document, headers=headers, media_type=JSON)

    async def _page(self, request: Request) -> Response:
        headers = request.scope[OWN_HEADERS_KEY]
        return Response(self._html, headers=headers, media_type="text/html")

    @cached_property
    def _document(self) -> bytes:
        return document(has_store=self._has_store)

    @cached_property
    def _html(self) -> bytes:
        return (resources.files("services.gateway.openapi") / "page.html").read_bytes()
