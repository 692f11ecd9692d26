"""A client that streams in a thread of its own, notes when text came, and can leave at any time."""

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chaos.engine import LOGPROB_TOLERANCE
from tests.chaos.trials import Missed

TIMEOUT_S = 90.0
MODEL = "baton-demo"
STORY = "Tell me the life of a request."


def story(**options: Any) -> dict[str, Any]:
    """The body of a streaming chat request."""
    question = options.pop("question", STORY)
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
        **options,
    }


@dataclass
class Answer:
    """What one stream brought."""

    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    # By choice: (token, logprob) where logprobs were asked for.
    logprobs: dict[int, list[tuple[str, float]]] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    # By which its bill is found.
    request_id: str = ""
    asked_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)

    @property
    def first_text_s(self) -> float:
        """From asking to the first piece of text."""
        return self.arrivals_s[0] - self.asked_s if self.arrivals_s else float("inf")

    @property
    def stall_s(self) -> float:
        """The longest pause between two pieces of text."""
        times = self.arrivals_s
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = json.dumps(event["error"])
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            index = choice["index"]
            text = choice["delta"].get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            if text:
                self.arrivals_s.append(time.monotonic())
            told = (choice.get("logprobs") or {}).get("content") or ()
            self.logprobs.setdefault(index, []).extend((t["token"], t["logprob"]) for t in told)
            if choice.get("finish_reason"):
                self.finish_reasons[index] = choice["finish_reason"]


def assert_same(answer: Answer, right: Answer) -> None:
    """The client cannot tell that anything happened."""
    assert answer.error == ""
    assert answer.texts == right.texts
    assert answer.finish_reasons == right.finish_reasons
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [answer.usage[name] for name in counts] == [right.usage[name] for name in counts]
    assert _tokens(answer) == _tokens(right)
    assert _logprobs(answer) == pytest.approx(_logprobs(right), abs=LOGPROB_TOLERANCE, rel=0)


def _tokens(answer: Answer) -> dict[int, list[str]]:
    return {choice: [token for token, _ in told] for choice, told in answer.logprobs.items()}


def _logprobs(answer: Answer) -> list[float]:
    return [value for choice in sorted(answer.logprobs) for _, value in answer.logprobs[choice]]


class Stream:
    """One request. `join` gives the answer; `wait_for` waits for its n-th piece of text."""

    def __init__(self, base_url: str, api_key: str, body: Mapping[str, Any]) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname
        self.answer = Answer()
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        self._path = parts.path + "/chat/completions"
        self._body = json.dumps(body)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_done = False
        self._is_sent = threading.Event()
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait_for(self, num_pieces: int) -> None:
        """Returns early when the answer ends before."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._has(num_pieces), TIMEOUT_S), "no text"

    def join(self) -> Answer:
        self._thread.join(TIMEOUT_S)
        assert self.is_over, "the stream does not end"
        return self.answer

    def leave(self) -> None:
        """Close the connection once the request is sent and before the answer has ended.

        Raises Missed when it had ended.
        """
        assert self._is_sent.wait(TIMEOUT_S)
        if self._connection.sock is None:
            raise Missed
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        if self.answer.usage:
            raise Missed

    def _has(self, num_pieces: int) -> bool:
        return self._is_done or len(self.answer.arrivals_s) >= num_pieces

    def _run(self) -> None:
        self.answer.asked_s = time.monotonic()
        try:
            self._connection.request("POST", self._path, self._body, self._headers)
            self._is_sent.set()
            response = self._connection.getresponse()
            self.answer.request_id = response.getheader("x-request-id", "")
            if response.status != 200:
                self.answer.error = f"{response.status} {response.read(2000)!r}"
            while line := response.readline():
                self._take_line(line)
        except (OSError, http.client.HTTPException) as error:
            self.answer.error = self.answer.error or repr(error)
        finally:
            self._connection.close()
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _take_line(self, line: bytes) -> None:
        if line.startswith(b"data: {"):
            with self._changed:
                self.answer.take(json.loads(line[6:]))
                self._changed.notify_all()
