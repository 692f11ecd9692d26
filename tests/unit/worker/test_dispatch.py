from typing import Any

from baton.engine.protocol.messages import (
    Abort,
    Admitted,
    Command,
    EngineLoad,
    Finished,
    Progress,
    Release,
    Started,
    StepEvents,
    TokenLogprobs,
)
from baton.testing.virtual_clock import VirtualClock
from baton.worker.dispatch import EngineDispatcher

LOAD = EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0)


class SentCommands:
    """An EngineClient that only keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)


class Heard:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(type(event).__name__)

    def on_token(self, token_id: int, index: int, logprobs: TokenLogprobs | None) -> None:
        told = () if logprobs is None else (logprobs.logprob,)
        self.events.append((token_id, index, *told))


def make() -> tuple[EngineDispatcher, SentCommands]:
    client = SentCommands()
    return EngineDispatcher(client, VirtualClock()), client  # type: ignore[arg-type]


def test_a_listener_hears_its_own_events_in_the_order_of_a_sequences_life() -> None:
    dispatcher, _ = make()
    mine, other = Heard(), Heard()
    first, second = dispatcher.open(mine, "r1"), dispatcher.open(other, "r1")

    dispatcher.dispatch(
        StepEvents(
            1,
            LOAD,
            token_seq_ids=[first],
            token_ids=[42],
            token_indexes=[0],
            admitted=[Admitted(second, 0)],
            started=[Started(first, [], 0, 1)],
            progress=[Progress(first, 16)],
            finished=[Finished(first, "stop", 1)],
        )
    )

    assert mine.events == ["Started", "Progress", (42, 0), "Finished"]
    assert other.events == ["Admitted"]


def test_observers_see_the_step_after_the_listeners() -> None:
    dispatcher, _ = make()
    heard = Heard()
    seq_id = dispatcher.open(heard, "r1")
    dispatcher.observe(lambda events: heard.events.append("observed"))

    dispatcher.dispatch(StepEvents(1, LOAD, finished=[Finished(seq_id, "stop", 1)]))

    assert heard.events == ["Finished", "observed"]


def test_after_an_abort_late_events_are_dropped() -> None:
    dispatcher, client = make()
    heard = Heard()
    seq_id = dispatcher.open(heard, "r1")

    dispatcher.abort(seq_id)
    dispatcher.dispatch(StepEvents(1, LOAD, finished=[Finished(seq_id, "stop", 1)]))

    assert client.sent == [Abort(seq_id)]
    assert heard.events == []
    assert dispatcher.num_open == 0


def test_release_frees_and_sequence_ids_are_never_reused() -> None:
    dispatcher, client = make()
    seq_id = dispatcher.open(Heard(), "r1")

    dispatcher.release(seq_id)

    assert client.sent == [Release(seq_id)]
    assert dispatcher.open(Heard(), "r1") != seq_id


def test_logprobs_come_with_their_token_and_those_of_the_prompt_before_it() -> None:
    dispatcher, _ = make()
    first, second = Heard(), Heard()
    ids = [dispatcher.open(first, "r1"), dispatcher.open(second, "r1")]

    dispatcher.dispatch(
        StepEvents(
            1,
            LOAD,
            token_seq_ids=ids,
            token_ids=[42, 43],
            token_indexes=[5, 5],
            logprobs=[TokenLogprobs(ids[1], 5, 43, -0.5, [], [])],
            prompt_logprobs=[TokenLogprobs(ids[0], 9, 7, -2.0, [], [])],
        )
    )

    assert first.events == ["TokenLogprobs", (42, 5)]
    assert second.events == [(43, 5, -0.5)]


def test_what_was_aborted_together_is_told_free_once_the_core_has_freed_all_of_it() -> None:
    dispatcher, _ = make()
    told: list[str] = []
    first, second = dispatcher.open(Heard(), "r1"), dispatcher.open(Heard(), "r1")
    for seq_id in (first, second):
        dispatcher.abort(seq_id)
    dispatcher.when_freed([first, second], lambda: told.append("free"))

    dispatcher.dispatch(StepEvents(1, LOAD, freed=[first]))
    assert told == []
    dispatcher.dispatch(StepEvents(2, LOAD, freed=[second]))
    dispatcher.dispatch(StepEvents(3, LOAD, freed=[second]))
    assert told == ["free"]
