"""A Locust user that asks and reads streams: one request, measured event by event.

Uses Locust's own HTTP client. Its `iter_content` waits until a chunk is full, so lines are read
from the underlying response, as they come.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
from gevent.socket import SO_RCVBUF, SOL_SOCKET, socket
from geventhttpclient.client import HTTPClientPool
from geventhttpclient.response import HTTPParseError
from locust import FastHttpUser

from loadtest.answers import AnswerError, StreamedAnswer
from loadtest.ask import PATH, Ask
from loadtest.recorder import Recorder

# Baton keeps a silent stream alive every 10 s.
READ_TIMEOUT_S = 120.0
_SLOW_READER_SOCKET_BYTES = 4096
_MAX_BACKOFF_S = 10.0


class Left(Exception):
    """The user left before the end of its answer, as planned."""


class SmallWindowPool(HTTPClientPool):
    """Connections with small socket buffers: a slow reader holds back the server instead of filling
    the system's buffers."""

    def get_client(self, url: Any) -> Any:
        client = super().get_client(url)
        client._connection_pool._create_tcp_socket = _small_socket  # type: ignore[assignment, method-assign]
        return client


def _small_socket(*family_type_protocol: int) -> socket:
    """A socket whose buffer is small before it connects, so that its first window is small."""
    made = socket(*family_type_protocol)
    made.setsockopt(SOL_SOCKET, SO_RCVBUF, _SLOW_READER_SOCKET_BYTES)
    return made


class StreamingUser(FastHttpUser):
    """`ask` sends one request and records what it measured under `kind`."""

    abstract = True
    network_timeout = READ_TIMEOUT_S
    connection_timeout = 30.0
    kind = ""
    api_key_env = "API_KEY"
    read_bytes_per_s = 0

    @property
    def recorder(self) -> Recorder:
        recorder: Recorder = self.environment.recorder
        return recorder

    def ask(self, model: str, ask: Ask) -> StreamedAnswer | None:
        """Ask and read the answer; None when it failed or the user left. Both are recorded."""
        body = ask.body(model)
        sent_s = time.perf_counter()
        answer = StreamedAnswer(ask.due_s if ask.due_s is not None else sent_s)
        if ask.due_s is not None:
            self.recorder.late(self.kind, sent_s - ask.due_s)
        client: Any = self.client
        with client.post(
            PATH,
            data=body,
            headers=self._headers(),
            name=self.kind,
            stream=True,
            catch_response=True,
        ) as response:
            reason = self._read(response, answer, ask.leave_after_pieces)
            ended_s = time.perf_counter()
            response.request_meta["response_time"] = (ended_s - answer.origin_s) * 1000
            response.request_meta["response_length"] = answer.num_output_tokens
            if isinstance(reason, Left):
                response.success()
                return None
            if reason is not None:
                response.failure(reason)
                self.recorder.failed(self.kind, ended_s - answer.origin_s)
            else:
                response.success()
                self.recorder.answered(self.kind, answer, sent_s, ended_s, response.headers)
                if not self.read_bytes_per_s:
                    self.recorder.rate(self.kind, answer)
        if reason is not None:
            gevent.sleep(_backoff_s(response))
            return None
        return answer

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.api_key_env) or os.environ.get("API_KEY", "")
        return {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
        }

    def _read(
        self, response: Any, answer: StreamedAnswer, leave_after_pieces: int | None
    ) -> Exception | None:
        """Read the whole stream; returns Left or the error that ended it, None when it is whole."""
        if response.status_code != 200:
            return _refusal(response)
        stream = response.stream
        on_text = self._on_text(answer, leave_after_pieces)
        began_s, num_bytes = time.perf_counter(), 0
        try:
            while line := stream.readline(b"\n"):
                now_s = time.perf_counter()
                if (gap_s := answer.feed(line, now_s)) is not None:
                    on_text(gap_s)
                if self.read_bytes_per_s:
                    num_bytes += len(line)
                    ahead_s = num_bytes / self.read_bytes_per_s - (now_s - began_s)
                    gevent.sleep(max(ahead_s, 0))
            answer.check_end()
        except (AnswerError, Left) as reason:
            stream.release()
            return reason
        except (OSError, HTTPParseError) as error:
            return error
        return None

    def _on_text(
        self, answer: StreamedAnswer, leave_after_pieces: int | None
    ) -> Callable[[float], None]:
        def on_text(gap_s: float) -> None:
            if answer.num_text_events == 1:
                self.recorder.first_text(self.kind, gap_s)
            elif not self.read_bytes_per_s:  # its gaps are its own
                self.recorder.next_text(self.kind, gap_s)
            if leave_after_pieces is not None and answer.num_text_events > leave_after_pieces:
                raise Left

        return on_text


def _refusal(response: Any) -> Exception:
    """Status and reason code of a refusal."""
    error = getattr(response, "error", None)
    if not response.status_code and error is not None:
        return AnswerError(f"no answer: {error!r}"[:200])
    try:
        details = msgspec.json.decode(response.content or b"")["error"]
        reason = str(details.get("code") or details.get("message"))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        reason = "no JSON error"
    return AnswerError(f"status {response.status_code}: {reason}"[:200])


def _backoff_s(response: Any) -> float:
    """The time that the server asks for, else a second, so that a refused user does not hammer."""
    text = (response.headers or {}).get("retry-after", "") if response.status_code else ""
    wished_s = float(text) if str(text).isdigit() else 1.0
    return min(max(wished_s, 0.1), _MAX_BACKOFF_S)
