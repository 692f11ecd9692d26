"""Failures that no answer's sink writes, as bodies in the form of the path's API.

They are those of a request that was refused before it ran, and those of starlette's routes.
"""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from baton.wire.failures import BatonError, InvalidRequest, Unavailable, did_you_mean
from baton.wire.metadata import REQUEST_ID
from services.gateway.endpoints import ENDPOINTS
from services.gateway.http.request import JSON, OWN_HEADERS_KEY
from services.gateway.http.response import HttpResponse, error_headers, send_error
from services.gateway.openai.errors import OPENAI, Dialect
from services.gateway.request import reports

# How alike two paths are that differ in a letter, or in a beginning of /v1.
_SAME_PATH = 0.75


async def refuse(response: HttpResponse, error: BatonError, dialect: Dialect = OPENAI) -> None:
    """Write a refusal as a whole response."""
    reports.of_refusal(error)
    await send_error(response, error, dialect=dialect)


async def baton_error(request: Request, error: Exception) -> Response:
    """The response to a request of starlette's routes that failed."""
    assert isinstance(error, BatonError)
    reports.of_refusal(error)
    endpoint, own_headers = ENDPOINTS.get(request.url.path), request.scope[OWN_HEADERS_KEY]
    dialect = OPENAI if endpoint is None else endpoint.dialect
    body = dialect.error_body(error, own_headers[REQUEST_ID])
    response = Response(body, dialect.status_of(error), own_headers, media_type=JSON)
    response.headers.update(error_headers(error))
    return response


async def http_error(request: Request, error: Exception) -> Response:
    """The response to a request for which starlette has no route."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        failure = InvalidRequest(
            f"{request.method} is not allowed here; {_allowed(error)}", reason="method_not_allowed"
        )
    else:
        failure = no_such_path(request.url.path)
    response = await baton_error(request, failure)
    response.headers.update(error.headers or {})
    return response


def _allowed(error: HTTPException) -> str:
    allowed = (error.headers or {}).get("Allow", "")
    return f"allowed are {allowed}" if allowed else "GET / lists the paths"


def no_such_path(path: str) -> InvalidRequest:
    """The refusal of a path that nothing answers, with the nearest one that something does."""
    hint = did_you_mean(path, (*ENDPOINTS, "/v1/models", "/readyz"), _SAME_PATH)
    elsewhere = "; the API is under /v1, GET / lists it"
    return InvalidRequest(f"no such path{hint or elsewhere}", reason="not_found")


def draining() -> Unavailable:
    """The failure of a request that this gateway does not finish, because it ends."""
    return Unavailable("this gateway is leaving; ask again", reason="draining", retry_after_s=1)
