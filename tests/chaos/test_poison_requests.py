"""A request that kills every core it runs on: two die, then it is refused; its mates finish."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tests.chaos.conftest import Target
from tests.chaos.poison.prompt import POISON_PROMPT
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Trials
from tests.e2e.conftest import Stack, wait_until

NUM_MATES = 6
NUM_TOKENS = 200
MAX_REFUSED_S = 5.0


def complete(stack: Stack, prompt: list[int]) -> tuple[int, dict[str, Any], dict[str, str]]:
    """One completion: status, body, headers. Since it asks for its prompt's logprobs, a decode
    worker computes the prompt, among the decodes of others."""
    sampling = {"max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 0}
    body = {"model": "baton-demo", "prompt": prompt, **sampling}
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
    target: Target, trials: Trials
) -> None:
    stack = target.stack
    bodies = [
        story(max_tokens=NUM_TOKENS, temperature=0.9, seed=number) for number in range(NUM_MATES)
    ]
    right = [target.right_answer(body) for body in bodies]

    def num_deaths() -> int:
        return stack.output.read_text().count("ended with")

    def trial(number: int) -> float:
        target.wait_until_whole()
        poison, before = [*POISON_PROMPT, number], num_deaths()
        mates = [target.stream(body) for body in bodies]
        for mate in mates:
            mate.wait_for(3)
        status, error, headers = complete(stack, poison)
        assert (status, error["error"]["code"]) == (400, "request_quarantined")
        assert headers["x-should-retry"] == "false"
        answers = [mate.join() for mate in mates]
        for answer, expected in zip(answers, right, strict=True):
            assert_same(answer, expected)
        wait_until(lambda: num_deaths() == before + 2)
        began_s = time.monotonic()
        status, error, _ = complete(stack, poison)
        assert (status, error["error"]["code"]) == (400, "request_quarantined")
        assert time.monotonic() - began_s < MAX_REFUSED_S, "it waited for a worker"
        target.wait_until_able(1)
        status, _, _ = complete(stack, [*POISON_PROMPT[1:], 78, number])
        assert status == 200, "one token less does not kill"
        assert num_deaths() == before + 2
        return max(answer.stall_s for answer in answers)

    trials.run("poison request", 20, trial)
