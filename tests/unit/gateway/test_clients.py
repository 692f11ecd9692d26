"""How long the gateway's clients go on asking when nobody answers, on virtual time."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import pytest

from baton.runtime import grpc_channel
from baton.system.clock import Clock
from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire import failures
from baton.wire.failures import BatonError, LimitExceeded, Overloaded
from baton.wire.v1 import calls_pb2, quota_pb2, router_pb2, tokenizer_pb2
from services.gateway.clients.grpc import (
    HUNG_S,
    MIN_LIFE_S,
    GrpcQuota,
    GrpcRouter,
    GrpcTokenizer,
)
from services.gateway.clients.protocols import CallContext

Ask = Callable[[CallContext], Awaitable[Any]]


class Stream:
    """A stream of calls over a Channel; lost at once while the service is away."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._frames: asyncio.Queue[calls_pb2.AnswerFrame] = asyncio.Queue()
        self._is_lost = channel.is_away
        if self._is_lost:
            channel.note_try()

    async def read(self) -> calls_pb2.AnswerFrame:
        if self._is_lost:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()
            )
        return await self._frames.get()

    async def write(self, frame: calls_pb2.CallFrame) -> None:
        if self._is_lost:
            raise asyncio.InvalidStateError
        for call in frame.calls:
            self._channel.note_try()
            if (answer := self._channel.answer(call.id)) is not None:
                self._frames.put_nowait(calls_pb2.AnswerFrame(answers=[answer]))

    def done(self) -> bool:
        return self._is_lost

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> None:
        """Nothing is left of it."""

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "away"

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()


class Channel:
    """A gRPC channel to a service that is away until `back_at_s`; keeps when it was tried."""

    def __init__(self) -> None:
        self.back_at_s = float("inf")
        self.refusal: BatonError | None = None
        self.tried_at_s: list[float] = []

    @property
    def is_away(self) -> bool:
        is_back = asyncio.get_running_loop().time() >= self.back_at_s
        return self.refusal is None and not is_back

    def note_try(self) -> None:
        self.tried_at_s.append(asyncio.get_running_loop().time())

    def answer(self, call_id: int) -> calls_pb2.Answer | None:
        if self.refusal is None:
            return calls_pb2.Answer(id=call_id, response=b"")
        return calls_pb2.Answer(id=call_id, failure=failures.to_wire(self.refusal))

    def stream_stream(self, path: str, **_serializers: Any) -> Callable[..., Stream]:
        return lambda **_options: Stream(self)

    def unary_stream(self, path: str, **_serializers: Any) -> None:
        """Not used here."""

    unary_unary = unary_stream


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    channel = Channel()
    for opener in ("open_channel", "open_balanced_channel"):
        monkeypatch.setattr(grpc_channel, opener, lambda *_: channel)
    return channel


def authenticate(context: CallContext, clock: Clock) -> Awaitable[Any]:
    return GrpcQuota(["a:1"], clock).authenticate(b"digest", context)


def reserve(context: CallContext, clock: Clock) -> Awaitable[Any]:
    return GrpcQuota(["a:1"], clock).reserve(quota_pb2.ReserveRequest(), context)


def settle(context: CallContext, clock: Clock) -> Awaitable[Any]:
    return GrpcQuota(["a:1"], clock).settle(quota_pb2.UsageRecord(), context)


def encode(context: CallContext, clock: Clock) -> Awaitable[Any]:
    return GrpcTokenizer(["a:1"], clock).encode(tokenizer_pb2.EncodeRequest(), context)


def pick(context: CallContext, clock: Clock) -> Awaitable[Any]:
    return GrpcRouter("a:1", clock).pick(router_pb2.PickRequest(), context)


def outcome(ask: Ask, deadline_s: float = 60.0) -> tuple[str, float]:
    """The reason of a call's failure or "an answer", and the seconds until it came."""
    clock = VirtualClock()

    async def main() -> tuple[str, float]:
        result: str
        try:
            await ask(CallContext("r1", deadline_s), clock)
            result = "an answer"
        except BatonError as error:
            result = error.reason
        return result, clock.now()

    return run_virtual(main(), clock)


@pytest.mark.parametrize(("ask", "num_tries"), [(authenticate, 18), (reserve, 18), (encode, 201)])
def test_a_request_that_finds_nobody_asks_again_for_its_patience(
    channel: Channel, ask: Ask, num_tries: int
) -> None:
    result, ended_s = outcome(ask)
    assert result == "unavailable"
    assert channel.tried_at_s == pytest.approx([0.05 * number for number in range(num_tries)])
    assert ended_s == channel.tried_at_s[-1], "no pause before the refusal"


@pytest.mark.parametrize("ask", [authenticate, reserve, encode])
def test_a_request_is_answered_by_a_replica_that_is_back_meanwhile(
    channel: Channel, ask: Ask
) -> None:
    channel.back_at_s = 0.8
    result, ended_s = outcome(ask)
    assert result == "an answer"
    assert 0.8 <= ended_s <= 0.85


@pytest.mark.parametrize("ask", [settle, pick])
def test_a_call_whose_caller_has_another_way_asks_once(channel: Channel, ask: Ask) -> None:
    assert outcome(ask) == ("unavailable", 0.0)
    assert channel.tried_at_s == [0.0]


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [(reserve, LimitExceeded("too fast")), (pick, Overloaded("too many", retry_after_s=1))],
)
def test_a_refusal_is_not_asked_again(channel: Channel, ask: Ask, refusal: BatonError) -> None:
    channel.refusal = refusal
    assert outcome(ask) == (refusal.reason, 0.0)
    assert channel.tried_at_s == [0.0]


@pytest.mark.parametrize("ask", [reserve, encode])
def test_a_refusal_and_the_prompt_that_it_is_of_are_in_no_cycle(channel: Channel, ask: Ask) -> None:
    """A megabyte of prompt would wait for the garbage collector."""
    channel.refusal = LimitExceeded("too much")
    refusals: list[weakref.ref[BatonError]] = []

    async def main() -> None:
        try:
            await ask(CallContext("r1", 60.0), clock)
        except BatonError as error:
            refusals.append(weakref.ref(error))
        await asyncio.sleep(0)
        assert refusals[0]() is None

    clock = VirtualClock()
    gc.disable()
    try:
        run_virtual(main(), clock)
    finally:
        gc.enable()


def test_no_request_asks_again_beyond_its_deadline(channel: Channel) -> None:
    result, ended_s = outcome(reserve, deadline_s=0.3)
    assert result == "unavailable"
    assert 0.2 <= ended_s < 0.3


def test_a_request_that_is_late_already_does_not_ask(channel: Channel) -> None:
    assert outcome(reserve, deadline_s=0.0) == ("deadline_exceeded", 0.0)
    assert channel.tried_at_s == []


class SilentChannel(Channel):
    """Takes every call and answers none: a replica that hangs."""

    is_away = False

    def answer(self, call_id: int) -> None:
        return None


def test_a_call_that_is_silent_is_made_again_over_a_fresh_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung, fresh = SilentChannel(), Channel()
    fresh.back_at_s = 0.0
    channels = iter([hung, fresh])
    monkeypatch.setattr(grpc_channel, "open_balanced_channel", lambda *_: next(channels))
    clock = VirtualClock()

    async def main() -> None:
        quota = GrpcQuota(["a:1", "b:1"], clock)
        await asyncio.sleep(MIN_LIFE_S)
        context = CallContext("r1", 1.0)
        began_s = clock.now()
        await quota.reserve(quota_pb2.ReserveRequest(), context)
        assert clock.now() - began_s == pytest.approx(HUNG_S)
        await quota.reserve(quota_pb2.ReserveRequest(), context)
        assert clock.now() - began_s == pytest.approx(HUNG_S)
        assert (len(hung.tried_at_s), len(fresh.tried_at_s)) == (1, 2)

    run_virtual(main(), clock)


def test_a_quota_that_is_silent_as_a_whole_is_not_dialled_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels: list[SilentChannel] = []

    def opened(*_: Any) -> SilentChannel:
        channels.append(SilentChannel())
        return channels[-1]

    monkeypatch.setattr(grpc_channel, "open_balanced_channel", opened)
    clock = VirtualClock()

    async def main() -> None:
        quota = GrpcQuota(["a:1"], clock)
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await quota.reserve(quota_pb2.ReserveRequest(), CallContext("r1", 1.0))
        assert len(channels) <= 1 + 20 / MIN_LIFE_S

    run_virtual(main(), clock)


def test_a_service_that_is_listed_elsewhere_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[tuple[str, ...], Channel] = {}

    def open_channel(endpoints: Sequence[str], service: str) -> Channel:
        assert service == "quota"
        channel = opened[tuple(endpoints)] = Channel()
        channel.back_at_s = 0.0
        return channel

    monkeypatch.setattr(grpc_channel, "open_balanced_channel", open_channel)
    clock = VirtualClock()

    async def main() -> None:
        quota = GrpcQuota(["quota:7000"], clock)
        context = CallContext("r1", 1.0)
        await quota.reserve(quota_pb2.ReserveRequest(), context)
        quota.move(["10.0.0.1:7000", "10.0.0.2:7000"])
        quota.move(["10.0.0.1:7000", "10.0.0.2:7000"])
        await quota.reserve(quota_pb2.ReserveRequest(), context)
        assert [len(channel.tried_at_s) for channel in opened.values()] == [1, 1]
        assert list(opened) == [("quota:7000",), ("10.0.0.1:7000", "10.0.0.2:7000")]

    run_virtual(main(), clock)
