"""Calls to all replicas of a service, over one stream to each of them.

A channel gives each new stream to the next replica that it knows. So the replicas are found by
opening streams: one to a replica that has a stream already is closed again, and the next look comes
later. A call goes to the replica with the fewest open calls, but not to one that has just refused a
call as unavailable, or been silent: with no calls open it would draw all of them. One whose stream
is lost is made again over another stream, and one that a balanced replica refuses as unavailable is
made again at another: all calls are pure or known by their request id. Such repeats end when those
that nobody answers outnumber a tenth of the calls, so that the outage of a whole service does not
multiply its calls.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from baton.runtime import grpc_channel
from baton.runtime.calls.call_stream import (
    AnswerStream,
    CallStream,
    GrpcAnswerStream,
    Unanswered,
)
from baton.system.clock import Clock
from baton.wire.call_methods import CallMethod, Request, Response
from baton.wire.failures import BatonError, DeadlineExceeded
from baton.wire.v1 import calls_pb2

# A peer that is back is found within 0.1 s (grpc_channel.py).
_REPEAT_PAUSE_S = 0.05
MAX_ATTEMPTS = 3
# A replica that is of no use gets no calls for so long, while there are others.
AVOID_S = 1.0
MIN_LOOK_S, MAX_LOOK_S = 0.2, 5.0
_MAX_CREDIT, _CREDIT_OF_ANSWER = 100.0, 0.1


@dataclass(frozen=True, slots=True)
class CallTerms:
    """How long a call may take, and the words that go with it.

    It ends `deadline_s` seconds from now. While no replica answers it is repeated for `patience_s`:
    one may be back in a moment. A replica that says nothing for `silence_s` is Silent.
    """

    deadline_s: float
    patience_s: float = 0.0
    silence_s: float = math.inf
    request_id: str = ""
    traceparent: str = ""


class Silent(DeadlineExceeded):
    """The replica took the call, and has not answered it in the time that it has for that."""


class SharedCalls:
    """The calls to one service. `open_stream` opens a stream to the next replica; `is_balanced`
    says that there may be several."""

    def __init__(
        self, open_stream: Callable[[], AnswerStream], clock: Clock, *, is_balanced: bool
    ) -> None:
        self._open_stream = open_stream
        self._clock = clock
        self._is_balanced = is_balanced
        # Those that take calls, least recently chosen first, and the time until which others have
        # the preference.
        self._streams: dict[CallStream, float] = {}
        self._candidate: CallStream | None = None
        self._look_at_s = 0.0
        self._look_pause_s = MIN_LOOK_S
        self._credit = _MAX_CREDIT
        self._is_left = False

    @classmethod
    def over_grpc(cls, stub: Any, clock: Clock, *, is_balanced: bool) -> Self:
        """The calls to the service of this stub, all of whose streams are its `Calls`."""
        return cls(
            lambda: GrpcAnswerStream(stub.Calls(metadata=grpc_channel.outgoing())),
            clock,
            is_balanced=is_balanced,
        )

    async def call(
        self, method: CallMethod[Request, Response], request: Request, terms: CallTerms
    ) -> Response:
        """Make a call. Raises the BatonError that the replica raised, Unavailable when none can be
        reached, Silent, DeadlineExceeded."""
        began_s, num_attempts, num_refused = self._clock.now(), 0, 0
        patient_until_s = began_s + min(terms.patience_s, terms.deadline_s)
        encoded = request.SerializeToString()
        while True:
            num_attempts += 1
            left_s = began_s + terms.deadline_s - self._clock.now()
            try:
                answer = await self._attempt(method.name, encoded, terms, left_s)
            except Unanswered:
                if self._streams and num_attempts < MAX_ATTEMPTS:
                    continue
                if self._clock.now() + _REPEAT_PAUSE_S >= patient_until_s:
                    raise
            except BatonError as refusal:
                if not self._may_repeat(refusal, num_attempts):
                    raise
                num_refused += 1
            else:
                # Refusals count against the service only while nobody answers the repeats.
                self._credit = min(self._credit + num_refused + _CREDIT_OF_ANSWER, _MAX_CREDIT)
                return method.response.FromString(answer)
            await asyncio.sleep(_REPEAT_PAUSE_S)

    async def close(self) -> None:
        """End all streams; open calls fail."""
        for stream in self._all_streams():
            await stream.close()

    def leave(self) -> None:
        """End each stream with its last open call, also one that is opened for a repeated call."""
        self._is_left = True
        for stream in self._all_streams():
            stream.leave()

    def _all_streams(self) -> list[CallStream]:
        return [*self._streams, *([self._candidate] if self._candidate else [])]

    async def _attempt(self, name: str, request: bytes, terms: CallTerms, left_s: float) -> bytes:
        """Make the call once, over one stream."""
        if left_s <= 0:
            raise DeadlineExceeded("the deadline passed before the call")
        call = calls_pb2.Call(
            method=name,
            timeout_us=int(left_s * 1e6) + 1,
            request_id=terms.request_id,
            traceparent=terms.traceparent,
        )
        stream = self._choose()
        try:
            return await stream.call(call, request, min(left_s, terms.silence_s))
        except TimeoutError:
            if terms.silence_s < left_s:
                self._avoid(stream)
                raise Silent("the peer is silent") from None
            raise DeadlineExceeded("deadline exceeded") from None
        except BatonError as refusal:
            if _is_unavailable(refusal):
                self._avoid(stream)
            raise

    def _avoid(self, stream: CallStream) -> None:
        if stream in self._streams:
            self._streams[stream] = self._clock.now() + AVOID_S

    def _may_repeat(self, refusal: BatonError, num_attempts: int) -> bool:
        if not self._is_balanced or not _is_unavailable(refusal):
            return False
        self._credit = max(self._credit - 1, 0.0)
        return num_attempts < MAX_ATTEMPTS and self._credit > _MAX_CREDIT / 2

    def _choose(self) -> CallStream:
        """The stream of the next call."""
        if not self._streams:
            self._streams[self._open()] = 0.0
        elif self._is_balanced:
            self._look_for_more()
        if len(self._streams) == 1:
            return next(iter(self._streams))
        now_s = self._clock.now()
        chosen = min(
            self._streams, key=lambda each: (self._streams[each] > now_s, each.num_waiting)
        )
        self._streams[chosen] = self._streams.pop(chosen)
        return chosen

    def _open(self) -> CallStream:
        stream = CallStream(self._open_stream(), self._clock, self._on_change)
        stream.is_leaving = self._is_left
        return stream

    def _look_for_more(self) -> None:
        """Open a stream to the next replica when it is time."""
        is_due = self._candidate is None and self._clock.now() >= self._look_at_s
        if is_due and all(stream.server_id for stream in self._streams):
            self._candidate = self._open()

    def _on_change(self, stream: CallStream) -> None:
        is_candidate = stream is self._candidate
        if is_candidate:
            self._candidate = None
        if stream.has_ended or stream.is_leaving:
            if self._streams.pop(stream, None) is not None:
                self._look_pause_s = MIN_LOOK_S
            if is_candidate or stream.has_ended:
                self._look_at_s = self._clock.now() + self._look_pause_s
        else:
            self._take_in(stream)

    def _take_in(self, stream: CallStream) -> None:
        """Use a stream that has greeted, unless its replica has another one."""
        others = [each.server_id for each in self._streams if each is not stream]
        if stream.server_id not in others:
            self._streams.setdefault(stream, 0.0)
            return
        self._streams.pop(stream, None)
        stream.leave()
        self._look_at_s = self._clock.now() + self._look_pause_s
        self._look_pause_s = min(2 * self._look_pause_s, MAX_LOOK_S)


def _is_unavailable(refusal: BatonError) -> bool:
    return refusal.row.grpc_code == "UNAVAILABLE"
