"""The report as a page of Locust's web UI, at /latency, while the test runs and after it."""

from typing import Any

from flask import request
from locust.runners import STATE_CLEANUP, STATE_RUNNING, STATE_SPAWNING, STATE_STOPPING

from loadtest.reporting import report

PATH = "/latency"
_EVERY_S = 3
_UNDER_WAY = (STATE_SPAWNING, STATE_RUNNING, STATE_CLEANUP, STATE_STOPPING)
# Above Locust's own page, which it covers nothing of.
_BAR = (
    '<body><div style="padding:8px 16px;background:#1d232b;color:#fff;font:14px sans-serif">'
    f'<a href="{PATH}" style="color:#9cc4ff">First tokens, gaps, goodput, verdict</a> &nbsp; '
    "Rows of the table below: TTFT, ITL, LATE, LAG and GOODPUT are in ms; IN TOK and OUT TOK are "
    "tokens, TOK/S tokens a second, whatever the column's title says.</div>"
)
_NOT_YET = (
    '<!doctype html><html lang="en"><title>Load test</title>'
    f'<meta http-equiv="refresh" content="{_EVERY_S}">'
    '<p style="font:16px sans-serif;margin:3em">No test has begun. <a href="/">Start one</a>: '
    "this page then shows it.</p></html>"
)


def add(web_ui: Any, load_test: Any) -> None:
    """Add the page, before the web UI starts. Locust's own pages take more tables, not charts."""

    def latency() -> Any:
        if not load_test.began_at_s:
            return _NOT_YET
        is_under_way = load_test.environment.runner.state in _UNDER_WAY
        return report.html(load_test.summary(), refresh_s=_EVERY_S if is_under_way else 0)

    def bar(response: Any) -> Any:
        if request.path == "/" and response.mimetype == "text/html":
            response.set_data(response.get_data(as_text=True).replace("<body>", _BAR, 1))
        return response

    web_ui.app.add_url_rule(PATH, "latency", web_ui.auth_required_if_enabled(latency))
    web_ui.app.after_request(bar)
