"""Who may see the page of a release, and that nobody may change anything through it.

A visitor shows the token once, in a login that must come from the page itself, and has a cookie
then: a session's random id, out of reach of scripts, which browsers send with the page's own
requests only. Beside login and logout nothing but reads gets further than this (decision 0093).
"""

from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.page.answers import Endpoints, Refused, body, error, json
from baton.page.browser_rules import HEADERS, READS, foreign
from baton.runtime import logs
from services.page.sessions import NoToken, Sessions, TooManyAttempts, WrongToken

LOGIN, LOGOUT = "/api/login", "/api/logout"
LOGIN_PAGE = "/login"
_PAGES = ("/", "/index.html")
# A proxy in front of the page may end the browser's TLS.
_SCHEMES = ("http", "https")
_MAX_LOGIN_BYTES = 4096
_MAX_COOKIE_CHARS = 256
_log = logs.get("page.guard")


class Guard:
    """ASGI middleware: lets reads of visitors pass, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, sessions: Sessions, cookie: str) -> None:
        self._app = app
        self._sessions = sessions
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(Request(scope)) if scope["type"] == "http" else error(400, "HTTP")
        await (answer or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to what is not let through."""
        # As it is routed: the path of `request.url` is what a parser makes of it and of any Host.
        path = request.scope["path"]
        if request.method == "POST" and path in (LOGIN, LOGOUT):
            reason = foreign(request, _SCHEMES)
            return error(403, reason) if reason else None
        if request.method not in READS:
            refused = error(405, "this page changes nothing")
            refused.headers["Allow"] = ", ".join(READS)
            return refused
        if path in _PAGES and not self._is_visitor(request):
            return RedirectResponse(LOGIN_PAGE, 303)
        if path.startswith("/api/") and not self._is_visitor(request):
            return error(401, "log in first")
        # The page's own files are no secret: they are the same everywhere.
        return None

    def _is_visitor(self, request: Request) -> bool:
        return self._sessions.is_open(session_of(request, self._cookie))


class Logins:
    """The two calls that are no reads."""

    def __init__(self, sessions: Sessions, cookie: str) -> None:
        self._sessions = sessions
        self._cookie = cookie

    def endpoints(self) -> Endpoints:
        return {"login": {"POST": self._login}, "logout": {"POST": self._logout}}

    async def _login(self, request: Request) -> Response:
        shown = (await body(request, _MAX_LOGIN_BYTES)).get("token")
        client = request.client.host if request.client else ""
        try:
            session_id = self._sessions.begin(shown if isinstance(shown, str) else "")
        except WrongToken as wrong:
            _log.warning("login_refused", client=client, reason=str(wrong))
            raise Refused(403, str(wrong)) from None
        except NoToken as missing:
            _log.warning("login_refused", client=client, reason=str(missing))
            raise Refused(503, str(missing)) from None
        except TooManyAttempts as many:
            answer = error(429, str(many))
            answer.headers["Retry-After"] = str(int(many.wait_s) + 1)
            return answer
        _log.info("logged_in", client=client)
        answer = json({})
        self._set_cookie(request, answer, session_id)
        return answer

    async def _logout(self, request: Request) -> Response:
        self._sessions.end(session_of(request, self._cookie))
        answer = json({})
        self._set_cookie(request, answer, "")
        return answer

    def _set_cookie(self, request: Request, answer: Response, session_id: str) -> None:
        """The cookie lives as long as its browser runs; the session may end before."""
        forwarded = request.headers.get("x-forwarded-proto", "")
        answer.set_cookie(
            self._cookie,
            session_id,
            max_age=None if session_id else 0,
            secure="https" in (request.scope["scheme"], forwarded),
            httponly=True,
            samesite="strict",
        )


def session_of(request: Request, cookie: str) -> str:
    """The session's id that a request shows; empty without one."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(cookie)
    except CookieError:
        return ""
    return found.value[:_MAX_COOKIE_CHARS] if found else ""
