"""Kinds of users, conversations, and how both are cut to a model's room."""

import random
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from baton.demo_model import demo_model_path
from loadtest.deployment import Deployment, DeploymentError, fit, inspect
from loadtest.workloads import KINDS, Conversation, UserKind, Writer

SMALL = Deployment("m", max_model_len=400, tokens_per_word=1.0, template_tokens=10)


def conversation(kind: UserKind, seed: int = 1, room: int = 10_000) -> Conversation:
    return Conversation("k", kind, Writer(), random.Random(seed), room)


def test_text_has_the_wished_length_and_depends_on_its_name_and_run_alone() -> None:
    assert len(Writer().text("a", 25).split()) == 25
    assert len(Writer(tokens_per_word=2.0).text("a", 25).split()) == 12
    assert Writer().text("a", 9) == Writer().text("a", 9)
    assert Writer(salt="1").text("a", 9) != Writer(salt="2").text("a", 9)


def test_a_shorter_text_of_the_same_name_is_a_prefix() -> None:
    assert Writer().text("a", 30).startswith(Writer().text("a", 20))


def test_users_share_the_system_prompt_and_nothing_else() -> None:
    kind = UserKind(system_tokens=20, document_tokens=30, query_tokens=5)
    (one_system, one), (other_system, other) = (
        conversation(kind, seed).next_turn() for seed in (1, 2)
    )
    assert one_system == other_system
    assert one["content"] != other["content"]
    assert len(one["content"].split()) == 35


def test_shared_documents_are_few_and_unequally_popular() -> None:
    kind = UserKind(document_tokens=8, num_documents=4, query_tokens=0)
    seen = [conversation(kind, seed).next_turn()[0]["content"] for seed in range(200)]
    counts = sorted(seen.count(text) for text in set(seen))
    assert len(counts) == 4
    assert counts[-1] > 2 * counts[0]


def test_a_conversation_grows_by_its_answers_and_ends_with_its_turns() -> None:
    kind = UserKind(system_tokens=4, query_tokens=4, num_turns=2)
    talk = conversation(kind)
    assert [message["role"] for message in talk.next_turn()] == ["system", "user"]
    talk.answered("fine", 20, 4)
    assert not talk.is_over
    assert [message["content"] for message in talk.next_turn()][2] == "fine"
    assert talk.is_over


def test_a_conversation_ends_where_the_room_ends() -> None:
    talk = conversation(UserKind(query_tokens=10, output_tokens=10, num_turns=99), room=100)
    talk.next_turn()
    talk.answered("x", 50, 10)
    assert not talk.is_over
    talk.answered("x", 60, 10)
    assert talk.is_over


def test_the_reference_workload_is_1025_tokens_in_and_150_out() -> None:
    kind = KINDS["reference"]
    words = " ".join(message["content"] for message in conversation(kind).next_turn()).split()
    assert (len(words), kind.output_tokens) == (1025, 150)


def test_what_fits_is_not_cut() -> None:
    kind = UserKind(query_tokens=300, output_tokens=50)
    assert fit("chat", kind, SMALL) == (kind, "")


def test_what_does_not_fit_is_cut_by_one_factor_and_says_so() -> None:
    kind = UserKind(system_tokens=100, document_tokens=600, query_tokens=40, output_tokens=60)
    cut, note = fit("rag", kind, SMALL)
    assert cut.first_turn_tokens <= SMALL.room(num_messages=2)
    assert cut.document_tokens == pytest.approx(6 * cut.system_tokens, rel=0.05)
    assert note.startswith("rag: 800 tokens do not fit into 400; system_tokens 100 -> ")


def test_a_model_whose_words_vary_in_length_keeps_some_room_free() -> None:
    varied = replace(SMALL, tokens_per_word=1.2)
    assert varied.room(num_messages=1) < 0.98 * SMALL.room(num_messages=1)


def test_each_word_is_one_token_of_the_demo_model() -> None:
    tokenizer = Tokenizer.from_file(str(demo_model_path() / "tokenizer.json"))
    words = Writer().text("calibration", 500).split()
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in words)


def served(path: str, body: dict | None) -> dict:
    """A server with 7 tokens of template and 1.5 tokens a word."""
    if body is None:
        return {"data": [{"id": "a"}, {"id": "b", "max_model_len": 512}]}
    num_words = len(body["messages"][0]["content"].split())
    return {"usage": {"prompt_tokens": 7 + num_words * 3 // 2}}


def test_the_server_tells_its_model_its_room_and_how_it_counts() -> None:
    assert inspect(served, "b") == Deployment("b", 512, 1.5, 7)
    assert inspect(served).model == "a"


def test_a_model_that_is_not_served_is_refused_by_name() -> None:
    with pytest.raises(DeploymentError, match="serves a, b, not c"):
        inspect(served, "c")
