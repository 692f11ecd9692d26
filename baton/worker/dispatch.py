"""Brings the core's step events to the sequences that they are about.

One dispatcher per core. It numbers sequences, sends commands, and calls one listener per sequence;
observers then see the whole step (metrics, reports, stream writers). Everything here is
synchronous: a listener that had to wait would hold up every other sequence.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from baton.engine.protocol.client import EngineClient
from baton.engine.protocol.engine_time import EngineTimes, SequenceTime
from baton.engine.protocol.messages import (
    Abort,
    Admitted,
    Bound,
    Command,
    EngineInfo,
    Finished,
    Progress,
    Release,
    SequenceRefused,
    Started,
    StepEvents,
    TokenLogprobs,
)
from baton.engine.protocol.pooled_messages import Pooled
from baton.system.clock import Clock
from baton.wire import failures
from baton.wire.v1 import failure_pb2, worker_pb2

# TokenLogprobs: of a prompt token; those of output tokens come with their tokens.
SequenceEvent = (
    Admitted | SequenceRefused | Started | Bound | Progress | TokenLogprobs | Pooled | Finished
)


class SequenceListener(Protocol):
    """A listener of one sequence, called in the core's order; tokens come before Finished."""

    def on_event(self, event: SequenceEvent) -> None: ...

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        """The next output token; `logprobs` where the sequence asked for them."""


class EngineDispatcher:
    """The front's only way to the core. Sequence ids are never reused."""

    def __init__(self, client: EngineClient, clock: Clock) -> None:
        self.times = EngineTimes(clock)
        self._client = client
        self._listeners: dict[int, SequenceListener] = {}
        self._request_ids: dict[int, str] = {}
        self._observers: list[Callable[[StepEvents], None]] = []
        # By sequence: those that are freed with it and were not yet, and whom to tell.
        self._freeing: dict[int, tuple[set[int], Callable[[], None]]] = {}
        self._last_seq_id = 0

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    @property
    def pool(self) -> memoryview:
        return self._client.pool

    @property
    def num_open(self) -> int:
        """Sequences that still hear events."""
        return len(self._listeners)

    def observe(self, observer: Callable[[StepEvents], None]) -> None:
        """Call `observer` after the listeners, with every step."""
        self._observers.append(observer)

    def open_sequences(self) -> Iterator[tuple[int, str]]:
        """(sequence, request) of those that still hear events."""
        yield from self._request_ids.items()

    def open(self, listener: SequenceListener, request_id: str) -> int:
        """A new sequence id; its events go to `listener` until forget, abort or release."""
        self._last_seq_id += 1
        self._request_ids[self._last_seq_id] = request_id
        self._listeners[self._last_seq_id] = listener
        self.times.open(self._last_seq_id)
        return self._last_seq_id

    def send(self, command: Command) -> None:
        """Queue a command for the core; never blocks."""
        self._client.send(command)

    def forget(self, seq_id: int) -> SequenceTime:
        """The sequence has ended; later events of it are dropped. Returns what is not billed."""
        self._listeners.pop(seq_id, None)
        self._request_ids.pop(seq_id, None)
        return self.times.close(seq_id)

    def abort(self, seq_id: int) -> SequenceTime:
        """End the sequence in any state and free everything; its listener hears no more. Returns
        what is not billed."""
        self._client.send(Abort(seq_id))
        return self.forget(seq_id)

    def release(self, seq_id: int) -> None:
        """Free a prefill sequence's blocks into the cache; its listener hears no more."""
        self.forget(seq_id)
        self._client.send(Release(seq_id))

    def bill(self, time: SequenceTime) -> failure_pb2.EngineTime:
        """What a sequence cost, for the wire; it counts as billed."""
        self.times.billed(time)
        return failure_pb2.EngineTime(
            prefill_us=time.prefill_us,
            decode_us=time.decode_us,
            kv_byte_ms=time.held_block_us * self.info.kv_spec.row_bytes // 1000,
            preempted_us=time.redone_us,
        )

    def when_freed(self, seq_ids: Iterable[int], call: Callable[[], None]) -> None:
        """Call once the core has freed the blocks of all of these, which were just aborted or
        released."""
        left = set(seq_ids)
        for seq_id in left:
            self._freeing[seq_id] = (left, call)

    async def run(self) -> None:
        """Dispatch until cancelled. Raises CoreDied."""
        while True:
            self.dispatch(await self._client.events())

    def dispatch(self, events: StepEvents) -> None:
        """Bring one step to listeners and observers."""
        self.times.take_in(events)
        self._dispatch_group(events.admitted)
        self._dispatch_group(events.refused)
        self._dispatch_group(events.started)
        self._dispatch_group(events.bound)
        self._dispatch_group(events.progress)
        self._dispatch_group(events.prompt_logprobs)
        listeners = self._listeners
        logprobs = {(entry.seq_id, entry.index): entry for entry in events.logprobs}
        columns = zip(events.token_seq_ids, events.token_ids, events.token_indexes, strict=True)
        for seq_id, token_id, index in columns:
            if (listener := listeners.get(seq_id)) is not None:
                listener.on_token(token_id, index, logprobs.get((seq_id, index)))
        self._dispatch_group(events.pooled)
        self._dispatch_group(events.finished)
        self._report_freed(events.freed)
        for observer in self._observers:
            observer(events)

    def _report_freed(self, seq_ids: Iterable[int]) -> None:
        for seq_id in seq_ids:
            left, call = self._freeing.pop(seq_id, (set(), None))
            left.discard(seq_id)
            if call is not None and not left:
                call()

    def _dispatch_group(self, events: Sequence[SequenceEvent]) -> None:
        for event in events:
            if (listener := self._listeners.get(event.seq_id)) is not None:
                listener.on_event(event)


def to_wire(entry: TokenLogprobs) -> worker_pb2.TokenLogprobs:
    """A token's logprobs for the wire, without its id, which its index tells."""
    return worker_pb2.TokenLogprobs(
        index=entry.index,
        logprob=entry.logprob,
        top_ids=entry.top_ids,
        top_logprobs=entry.top_logprobs,
        rank=entry.rank,
    )


def sequence_failure(reason: str, message: str) -> failures.BatonError:
    """The failure of a request whose sequence the engine refused or ended.

    `reason` is the engine's; an unknown one is `internal`.
    """
    failure = failure_pb2.Failure(reason=reason, message=message)
    if reason == "invalid_grammar":
        failure.param = "response_format"
        failure.message = f"response_format: {message}"
    return failures.from_wire(failure)
