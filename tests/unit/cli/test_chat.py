"""`baton chat`: the stream of an answer, and what cannot be asked."""

import io
import sys

import pytest

from baton.cli import chat
from baton.localstack.home import StackState
from baton.localstack.refusal import Refusal

STATE = StackState(1, "http://127.0.0.1:1/v1", models=["baton-demo", "gpt-4o"])


def test_the_pieces_of_a_stream_are_its_text_and_an_error_event_ends_it() -> None:
    lines = [
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n',
        b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n',
        b"\n",
        b'data: {"choices": [{"delta": {"content": "lo"}}]}\n',
        b'data: {"choices": [], "usage": {}}\n',
        b"data: [DONE]\n",
    ]
    assert list(chat.pieces(iter(lines))) == ["Hel", "lo"]
    failed = [*lines[:2], b'data: {"error": {"message": "the worker is lost"}}\n']
    with pytest.raises(chat.ChatFailed, match="the worker is lost"):
        list(chat.pieces(iter(failed)))


def test_a_model_is_the_first_unless_one_that_is_served_is_named() -> None:
    assert chat.chosen_model(STATE, None) == "baton-demo"
    assert chat.chosen_model(STATE, "gpt-4o") == "gpt-4o"
    with pytest.raises(Refusal, match="did you mean baton-demo"):
        chat.chosen_model(STATE, "baton-dem")


@pytest.mark.parametrize(
    ("given", "piped", "asked"),
    [("Sum up", "a text\n", "Sum up\n\na text"), (None, "hi\n", "hi"), ("hi", "", "hi")],
)
def test_what_is_piped_in_stands_behind_the_question(
    monkeypatch: pytest.MonkeyPatch, given: str | None, piped: str, asked: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    assert chat._question(given) == asked


def test_a_message_of_several_lines_stands_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(['"""first', "second", 'third"""'])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert chat._read_message() == "first\nsecond\nthird"


def test_commands_change_the_conversation_and_send_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation = chat.Conversation("baton-demo", messages=[{"role": "user", "content": "x"}])
    chat._obey("/model gpt-4o", conversation, STATE)
    chat._obey("/system be brief", conversation, STATE)
    chat._obey("/clear", conversation, STATE)
    assert (conversation.model, conversation.system) == ("gpt-4o", "be brief")
    assert conversation.messages == []
    chat._obey("/modle x", conversation, STATE)
    assert "did you mean /model?" in capsys.readouterr().out
