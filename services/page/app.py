"""The ASGI application: what the page reads, behind the login."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.page.answers import routes_of
from baton.page.reads import Reads, file_answer, files_in
from services.page.guard import LOGIN_PAGE, Guard, Logins
from services.page.sessions import Sessions

_FOLDER = Path(__file__).parent / "files"
_FILES = {**files_in(_FOLDER), LOGIN_PAGE: _FOLDER / "login.html"}


def application(reads: Reads, sessions: Sessions, cookie: str) -> Starlette:
    """`cookie` is the name of the one that a visitor has."""
    endpoints = {**reads.endpoints(), **Logins(sessions, cookie).endpoints()}
    return Starlette(
        routes=[
            *reads.file_routes(),
            *(Route(path, _file) for path in _FILES),
            *routes_of(endpoints),
        ],
        middleware=[Middleware(Guard, sessions=sessions, cookie=cookie)],
    )


async def _file(request: Request) -> Response:
    return file_answer(_FILES[request.scope["path"]])
