"""`baton open`: the stack's web page in the browser of this machine."""

import argparse
import sys
import webbrowser
from typing import Any

from baton.cli.stack import running_state
from baton.localstack.home import Home
from baton.localstack.refusal import Refusal


def add_parsers(commands: Any) -> None:
    help_text = "open the stack's web page in the browser"
    parser = commands.add_parser("open", help=help_text, description=help_text)
    parser.add_argument("request_id", nargs="?", help="at the waterfall of this request")
    parser.set_defaults(run=_open)


def _open(arguments: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    if not state.web_url:
        raise Refusal("this stack has no web page: an older baton started it")
    url = state.web_url
    if arguments.request_id:
        url += f"#/requests/{arguments.request_id}"
    print(url, flush=True)
    if not webbrowser.open(url):
        print("this machine has no browser: open that address in yours", file=sys.stderr)
    return 0
