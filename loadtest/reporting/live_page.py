"""The report as a page of Locust's web UI, at /latency, while the test runs."""

from typing import Any

from flask import redirect, request

from loadtest.reporting import report

PATH = "/latency"
_EVERY_S = 3
_LINK = (
    f'<a href="{PATH}" style="position:fixed;right:16px;bottom:12px;z-index:9;padding:8px 14px;'
    'border-radius:6px;background:#2f6fd0;color:#fff;font:14px sans-serif;text-decoration:none">'
    "First tokens, gaps, goodput</a></body>"
)


def add(web_ui: Any, load_test: Any) -> None:
    """Add the page, before the web UI starts. Locust's own pages take more tables, not charts."""

    def latency() -> Any:
        if not load_test.began_at_s:
            return redirect("/")
        return report.html(load_test.summary(), refresh_s=_EVERY_S)

    def link(response: Any) -> Any:
        if request.path == "/" and response.mimetype == "text/html":
            response.set_data(response.get_data(as_text=True).replace("</body>", _LINK))
        return response

    web_ui.app.add_url_rule(PATH, "latency", web_ui.auth_required_if_enabled(latency))
    web_ui.app.after_request(link)
