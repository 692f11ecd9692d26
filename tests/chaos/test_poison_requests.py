"""A request that kills every core it runs on: two die, then it is refused; its mates finish."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.poisoned_core import POISON_PROMPT
from tests.chaos.streams import Stream, assert_same, story
from tests.e2e.conftest import Stack

NUM_MATES = 6
NUM_TOKENS = 200


class PoisonedStack(Stack):
    """Aggregated workers: the prompt that kills is computed among the decodes of the others."""

    program = "tests.chaos.poisoned_up"


@pytest.fixture
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoisonedStack]:
    folder = tmp_path_factory.mktemp("poison") / "home"
    sizes = ("--aggregated", "3", "--kv-memory", "16MiB", "--dtype", "float32", "--deterministic")
    stack = PoisonedStack(folder, *sizes)
    stack.start()
    yield stack
    assert stack.interrupt() == 0, stack.output.read_text()[-3000:]


def complete(stack: Stack, prompt: list[int]) -> tuple[int, dict[str, Any], dict[str, str]]:
    """One completion: status, body, headers."""
    body = {"model": "baton-demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    headers = {"Authorization": f"Bearer {stack.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{stack.base_url}/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


def test_a_poison_request_is_refused_after_two_cores_and_its_mates_finish(
    poisoned: PoisonedStack,
) -> None:
    bodies = [
        story(max_tokens=NUM_TOKENS, temperature=0.9, seed=number) for number in range(NUM_MATES)
    ]
    right = [Stream(poisoned.base_url, poisoned.api_key, body).join() for body in bodies]
    mates = [Stream(poisoned.base_url, poisoned.api_key, body) for body in bodies]
    for mate in mates:
        mate.wait_for(3)
    status, error, headers = complete(poisoned, POISON_PROMPT)
    assert (status, error["error"]["code"]) == (400, "request_quarantined")
    assert headers["x-should-retry"] == "false"
    for mate, answer in zip(mates, right, strict=True):
        assert_same(mate.join(), answer)
    assert poisoned.output.read_text().count("ended with") == 2, "workers that died"
    began_s = time.monotonic()
    status, error, _ = complete(poisoned, POISON_PROMPT)
    assert (status, error["error"]["code"]) == (400, "request_quarantined")
    assert time.monotonic() - began_s < 5, "it waited for a worker"
    assert poisoned.metric("router", "baton_router_quarantined_requests_total") == 1
    status, _, _ = complete(poisoned, [*POISON_PROMPT[1:], 78])
    assert status == 200, "one token less does not kill"
