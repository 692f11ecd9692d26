"""Commands, the page and a Prometheus beside a running stack."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import openai
import yaml

from tests import needs
from tests.e2e.conftest import START_TIMEOUT_S, Stack, wait_until
from tests.kit.browser import Browser
from tools.dashboards.look import ALERTS, scrape_config
from tools.dashboards.prometheus import Prometheus, running

MAX_LOOKS = 5
NO_PREFILL = ("BatonNoReadyWorkers", "prefill")


def rules_without_patience(folder: Path) -> Path:
    """The product's rules, which here need not hold for minutes before they fire."""
    rules: dict[str, Any] = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(rules))
    return file


def firing(prometheus: Prometheus) -> set[tuple[str, str]]:
    """What fires, by alert and role; all rules are in order."""
    found = prometheus.rules()
    assert {rule["health"] for rule in found} <= {"ok", "unknown"}, found
    return {
        (rule["name"], alert["labels"].get("role", ""))
        for rule in found
        for alert in rule["alerts"]
        if alert["state"] == "firing"
    }


@needs.prometheus
def test_an_alert_fires_when_a_pool_dies_and_ends_when_it_is_back(
    stack: Stack, tmp_path: Path
) -> None:
    state = stack.home.read_state()
    assert state is not None
    config = scrape_config(state) | {"rule_files": [str(rules_without_patience(tmp_path))]}
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    with running(tmp_path, config) as prometheus:

        def has_looked() -> bool:
            rules = prometheus.rules()
            return bool(rules) and all(rule["health"] == "ok" for rule in rules)

        wait_until(has_looked, START_TIMEOUT_S)
        wait_until(lambda: NO_PREFILL not in firing(prometheus), START_TIMEOUT_S)
        killed: set[int] = set()

        def fires_while_each_worker_is_killed() -> bool:
            # One that is left alone may be back before a busy Prometheus has looked.
            if (pid := stack.pids().get("prefill-1", 0)) not in killed | {0}:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            return NO_PREFILL in firing(prometheus)

        wait_until(fires_while_each_worker_is_killed, START_TIMEOUT_S)
        assert killed
        wait_until(lambda: NO_PREFILL not in firing(prometheus), START_TIMEOUT_S)
        assert stack.pids()["prefill-1"] not in killed


def test_a_second_stack_in_the_same_folder_is_refused_in_one_line(stack: Stack) -> None:
    result = stack.command("up", "--port", "0")
    assert result.returncode == 2
    assert "already runs" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_named(stack: Stack, tmp_path: Path) -> None:
    port = stack.base_url.split(":")[2].split("/")[0]
    result = Stack(tmp_path / "home").command("up", "--port", port)
    assert result.returncode == 2
    assert f"port {port} is taken" in result.stderr


def test_status_says_what_runs_where(stack: Stack) -> None:
    # A service that has no core for two seconds is shown as one that does not answer.
    results = [stack.command("status")]
    while results[-1].returncode and len(results) < MAX_LOOKS:
        results.append(stack.command("status"))
    result = results[-1]
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("gateway", "router", "prefill-1", "decode-2", "redis"):
        assert name in result.stdout
    assert stack.api_key not in result.stdout


def test_the_page_talks_for_the_developer_and_shows_whose_keys_there_are(stack: Stack) -> None:
    state = stack.home.read_state()
    assert state is not None
    own = {"Origin": state.web_url.rstrip("/"), "Content-Type": "application/json"}
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "What is TTFT?"}]}
    asked = urllib.request.Request(
        f"{state.web_url}api/chat", json.dumps(body).encode(), own, method="POST"
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        request_id = answer.headers["x-request-id"]
        assert answer.headers["x-trace-url"] == f"{state.web_url}#/requests/{request_id}"
        assert answer.read().rstrip().endswith(b"data: [DONE]")
    with urllib.request.urlopen(f"{state.web_url}api/admin/keys", timeout=60) as answer:
        shown = answer.read().decode()
    assert {key["tenant"] for key in json.loads(shown)["keys"]} >= {"dev"}
    assert stack.api_key not in shown


@needs.browser
def test_a_key_is_made_and_revoked_on_the_page(stack: Stack, tmp_path: Path) -> None:
    state = stack.home.read_state()
    assert state is not None
    with Browser(str(needs.BROWSER), tmp_path / "profile") as browser:
        browser.look(1280, 900)
        browser.open(f"{state.web_url}#/tenants")
        browser.until("document.querySelector('.tenant')")
        for field, text in (("tenant", "on-the-page"), ("rpm", "5"), ("models", "baton-demo")):
            browser.click(f"#new-{field}")
            browser.type(text)
        browser.click(".form button.primary")
        key = browser.until("document.querySelector('.new-key code')?.textContent")
        card = (
            "[...document.querySelectorAll('.tenant')]"
            ".find((each) => each.querySelector('h2').textContent === 'on-the-page')"
        )
        assert "5 requests/min" in browser.until(f"{card}?.innerText")
        assert [model.id for model in stack.client(key).models.list()] == ["baton-demo"]

        browser.run(f"{card}.querySelector('.danger').id = 'revoke'")
        browser.click("#revoke")
        browser.until("document.querySelector('#revoke').textContent === 'For good?'")
        # Once is not enough.
        assert stack.client(key).models.list().data
        browser.click("#revoke")
        browser.until(f"{card}?.querySelector('.tag.bad')?.textContent === 'revoked'")
        # The key itself is told once, and is no part of what a later look gets.
        assert key not in browser.run(f"{card}.innerHTML")
        assert browser.errors == []
    wait_until(lambda: _is_refused(stack, key))


def _is_refused(stack: Stack, key: str) -> bool:
    try:
        stack.client(key).models.list()
    except openai.AuthenticationError:
        return True
    return False
