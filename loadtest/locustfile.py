"""The file that Locust loads: the kinds of users, and the load test around them.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --scenario reference --headless

`python -m loadtest` (`make loadtest`) does that for the stack of this folder.
"""

import random
import secrets
import time
from collections.abc import Iterator
from typing import Any

import gevent
from gevent.pool import Pool
from locust import events, task
from locust.exception import StopUser

from loadtest.ask import Ask
from loadtest.control import REPLAY, LoadTest, add_options
from loadtest.replay import Arrival, TraceError
from loadtest.streaming_user import SmallWindowPool, StreamingUser
from loadtest.workloads import Conversation, UserKind

# Requests that one process has open at once in a replay; more of them wait, and are late.
_MAX_OPEN = 2000


def _on_init(environment: Any, **_: Any) -> None:
    environment.load_test = LoadTest(environment)
    environment.recorder = environment.load_test.recorder


_hooks: Any = events
_hooks.init_command_line_parser.add_listener(add_options)
_hooks.init.add_listener(_on_init)


class ConversationUser(StreamingUser):
    """A user in a closed loop: asks, reads, thinks, asks again. A failed answer ends its
    conversation."""

    abstract = True

    def on_start(self) -> None:
        test: LoadTest = self.environment.load_test
        if test.deployment is None:
            raise StopUser
        self._model = test.deployment.model
        self._room = test.deployment.room(num_messages=0)
        self._spec: UserKind = test.kind(self.kind)
        self._writer = test.writer
        self._rng = random.Random(secrets.randbits(64))
        self._conversation: Conversation | None = None
        self.api_key_env = self._spec.api_key_env
        self.read_bytes_per_s = self._spec.read_bytes_per_s
        if self.read_bytes_per_s:
            self.client.client.clientpool = SmallWindowPool(
                concurrency=1,
                network_timeout=self.network_timeout,
                connection_timeout=self.connection_timeout,
                insecure=self.insecure,
            )

    def wait_time(self) -> float:
        return self._rng.uniform(*self._spec.think_s)

    @task
    def turn(self) -> None:
        if self._conversation is None or self._conversation.is_over:
            self._conversation = Conversation(
                self.kind, self._spec, self._writer, self._rng, self._room
            )
        messages = self._conversation.next_turn()
        leaves = self._spec.leave_after_pieces
        if leaves is not None:
            leaves = self._rng.randint(0, leaves)
        ask = Ask(messages, self._spec.output_tokens, leave_after_pieces=leaves)
        answer = self.ask(self._model, ask)
        if answer is None:
            self._conversation = None
        else:
            self._conversation.answered(
                answer.text, answer.num_prompt_tokens, answer.num_output_tokens
            )


class Chat(ConversationUser):
    kind = "chat"


class Rag(ConversationUser):
    kind = "rag"


class Agent(ConversationUser):
    kind = "agent"


class LongDocument(ConversationUser):
    kind = "long_document"


class Interactive(ConversationUser):
    kind = "interactive"


class Batch(ConversationUser):
    kind = "batch"


class SlowReader(ConversationUser):
    kind = "slow_reader"


class Leaver(ConversationUser):
    kind = "leaver"


class Reference(ConversationUser):
    kind = "reference"


class Replay(StreamingUser):
    """An open loop: sends each request of its part of the trace at its time, whatever the state of
    the others. Its answers' times count from then."""

    kind = REPLAY
    concurrency = _MAX_OPEN

    @task
    def replay(self) -> None:
        test: LoadTest = self.environment.load_test
        if test.deployment is None:
            raise StopUser
        try:
            arrivals = test.arrivals()
        except TraceError as error:
            test.give_up(error)
            raise StopUser from error
        model, pool = test.deployment.model, Pool(_MAX_OPEN)
        began_s = time.perf_counter()
        for ask in self._asks(arrivals, began_s):
            assert ask.due_s is not None
            gevent.sleep(max(ask.due_s - time.perf_counter(), 0))
            pool.spawn(self.ask, model, ask)
        pool.join()
        raise StopUser

    def _asks(self, arrivals: list[Arrival], began_s: float) -> Iterator[Ask]:
        """Requests whose prompts are written before they are due."""
        writer = self.environment.load_test.writer
        for number, arrival in enumerate(arrivals):
            own_name = f"{self.environment.runner.worker_index}/{number}"
            message = {"role": "user", "content": arrival.prompt(writer, own_name)}
            yield Ask([message], arrival.num_output_tokens, due_s=began_s + arrival.at_s)
