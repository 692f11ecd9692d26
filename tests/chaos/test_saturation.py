"""Saturation is no fault: ten minutes of more load than the stack can serve eject no worker."""

import random
import threading
import time
from collections import Counter

from tests.chaos.conftest import Target
from tests.chaos.streams import Answer, story
from tests.chaos.trials import Trials

SATURATED_S = 600.0
NUM_CLIENTS = 48
# Waits are predicted when a request comes; a machine that others use, too, then keeps it waiting.
MAX_LATE_SHARE = 0.01
# Up to 1,300 tokens of prompt: long steps, full queues, full pools.
FILLER = "Tell me, in a few words, about the price of tea and the way to the station. "
MAX_FILLERS = 60


class Load:
    """Clients that ask again as soon as they have their answer, until `ends_s`."""

    def __init__(self, target: Target, ends_s: float) -> None:
        self.outcomes: Counter[str] = Counter()
        self._target = target
        self._ends_s = ends_s

    def run(self) -> None:
        clients = [
            threading.Thread(target=self._ask_again_and_again, args=(number,))
            for number in range(NUM_CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def _ask_again_and_again(self, number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < self._ends_s:
            question = f"{rng.random()} {FILLER * rng.randint(0, MAX_FILLERS)}"
            body = story(question=question, max_tokens=rng.randint(1, 300))
            answer = self._target.stream(body).join()
            self.outcomes[outcome(answer, body["max_tokens"])] += 1


def outcome(answer: Answer, max_tokens: int) -> str:
    """ "whole", "refused", "late" (no token in time), or what went wrong."""
    if answer.usage.get("completion_tokens") == max_tokens:
        return "whole"
    if answer.error.startswith(("429", "503")):
        return "refused"
    is_late = not answer.texts and "deadline_exceeded" in answer.error
    return "late" if is_late else answer.error[:200]


def test_a_saturated_stack_ejects_nobody(target: Target, trials: Trials) -> None:
    target.wait_until_whole()

    def counts() -> dict[str, float]:
        ejections = target.counts("router", "baton_router_ejections_total")
        return {"moves": target.num_moves(), **ejections}

    before = counts()
    load = Load(target, time.monotonic() + SATURATED_S)
    load.run()
    print(f"{NUM_CLIENTS} clients, {SATURATED_S:.0f} s: {dict(load.outcomes)}")
    assert counts() == before
    assert set(load.outcomes) <= {"whole", "refused", "late"}
    assert load.outcomes["late"] <= MAX_LATE_SHARE * load.outcomes.total()
