"""The commands and programs that pages show, as they stand there, against one running stack.

Those that need another place are named in tests/kit/documented.py. What a reader puts in by hand is
put in here: paths of the stack, ids, and fewer tokens for the answer that is to be long.
"""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import ANSWER_TIMEOUT_S, Stack, wait_until
from tests.kit.documented import Statement, blocks, statements

SCRIPTED = sorted({each.page for each in statements() if not each.why_not_run})
# A pipe would say that all went well when only its last command did.
PRELUDE = "set -eu -o pipefail\ntrap 'echo \"FAILED: $BASH_COMMAND\" >&2' ERR\n"


@pytest.fixture(scope="module")
def request_id(stack: Stack) -> str:
    """A request whose spans are there."""
    asked = stack.client().chat.completions.with_raw_response.create(
        model="baton-demo", messages=[{"role": "user", "content": "What is TTFT?"}], max_tokens=4
    )
    request_id = asked.headers["x-request-id"]
    explain = partial(stack.command, "explain", request_id)
    wait_until(lambda: explain().returncode == 0, ANSWER_TIMEOUT_S, every_s=1)
    return request_id


@pytest.fixture
def key_id(stack: Stack) -> str:
    """A key that may be revoked."""
    created = stack.command("keys", "create", "--tenant", "documented")
    (found,) = re.findall(r"key_\w+", created.stderr)
    return found


def typed(statement: Statement, stack: Stack, request_id: str, key_id: str) -> str:
    """What somebody types who follows the page."""
    text = statement.text.replace(".venv/bin/baton", "baton")
    if statement.words[-1] == "chat":  # or it would wait for a question
        text = 'baton chat <<< "What is TTFT?"'
    text = text.replace(". .baton/dev.env", f". {stack.home.dev_env}")
    text = text.replace('"max_tokens": 1800', '"max_tokens": 40')
    # Other tests have an organisation of this name.
    text = text.replace("bigco", "documented")
    return text.replace("REQUEST_ID", request_id).replace("KEY_ID", key_id)


@pytest.mark.parametrize("page", SCRIPTED)
def test_the_commands_of_a_page_do_what_they_say(
    page: str, stack: Stack, request_id: str, key_id: str, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "baton"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m baton.cli "$@"\n')
    program.chmod(0o755)
    commands = [
        typed(each, stack, request_id, key_id)
        for each in statements()
        if each.page == page and not each.why_not_run
    ]
    # No browser is opened.
    environment = stack.environment | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "BROWSER": "true",
    }
    ended = subprocess.run(
        ["bash", "-c", PRELUDE + "\n".join(commands)],
        stdin=subprocess.DEVNULL, env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=ANSWER_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:] + ended.stdout[-2000:]
    if page == "docs/tutorial.md":
        told = ended.stdout
        assert told.count('"content":"') >= 3
        assert "429" in told
        assert told.count("200\n") == 3 + 2


# By page: the packages of its programs that this environment has (`make test-clients`: the others).
PROGRAMS = {"README.md": {"openai"}, "docs/clients.md": {"openai", "anthropic"}}

TOLD = {"README.md": ["backpressure", "get_weather"], "docs/clients.md": ["time to first token"]}


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_programs_of_a_page_run_as_they_stand(page: str, stack: Stack) -> None:
    def is_here(text: str) -> bool:
        return set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) <= PROGRAMS[page]

    program = "\n".join(filter(is_here, blocks(page, "python")))
    assert 'base_url="http://127.0.0.1:8080/v1", api_key="..."' in program
    program = program.replace("http://127.0.0.1:8080", stack.base_url.removesuffix("/v1"))
    program = program.replace('"..."', f'"{stack.api_key}"')
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.lower()
    assert all(words in told for words in TOLD[page])
