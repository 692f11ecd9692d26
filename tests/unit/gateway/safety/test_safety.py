"""Prompts and answers that a safety hook judges, through the app on virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from baton.wire.failures import InvalidRequest, Unavailable
from services.gateway.openai import chat
from services.gateway.safety.hook import SafetyHook
from services.gateway.safety.screen import MAX_PIECE_CHARS, check_prompt
from tests.unit.gateway.fakes import Fleet, simulate
from tests.unit.gateway.test_app import CHAT, Client, app_of, serve

TIMEOUT_S = 1.0
SAFE = "This sentence is long enough to be a piece of its own. "
BAD = "And this one has the forbidden word in its middle, alas. "


class WordJudge:
    """Refuses texts with a word; may be slow, or away."""

    def __init__(self, word: str = "forbidden") -> None:
        self.word = word
        self.asked: list[list[str]] = []
        self.wait_s = 0.1
        self.is_away = False

    async def judge(self, texts: Sequence[str]) -> bool:
        self.asked.append(list(texts))
        await asyncio.sleep(self.wait_s)
        if self.is_away:
            raise Unavailable("no route")
        return any(self.word in text for text in texts)

    async def close(self) -> None:
        """Close nothing."""


def simulate_judged(
    scenario: Callable[[Fleet, WordJudge], Awaitable[None]],
    word: str = "forbidden",
    *,
    fails_open: bool = False,
) -> None:
    judge = WordJudge(word)
    hook = SafetyHook(judge, TIMEOUT_S, fails_open=fails_open)
    simulate(lambda fleet: scenario(fleet, judge), safety=hook)


async def asked(fleet: Fleet, **fields: Any) -> Client:
    client = Client(CHAT | fields)
    await serve(app_of(fleet), client)
    return client


def chunks(client: Client) -> list[dict[str, Any]]:
    events = [json.loads(event) for event in client.events if event != "[DONE]"]
    return [event["choices"][0] for event in events if "choices" in event]


def text_of(client: Client) -> str:
    return "".join(chunk["delta"].get("content") or "" for chunk in chunks(client))


def test_an_answer_that_is_allowed_arrives_whole() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [SAFE * 30]
        client = await asked(fleet)
        assert text_of(client) == SAFE * 30
        assert chunks(client)[-1]["finish_reason"] == "stop"
        assert judge.asked[0] == ["hi"]
        assert len(judge.asked) > 10
        assert "safety;dur=" in client.headers["server-timing"]

    simulate_judged(scenario)


def test_nothing_of_a_refused_piece_is_sent_and_the_worker_stops() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [SAFE + BAD + SAFE * 50]
        client = await asked(fleet)
        assert text_of(client) == SAFE.rstrip()
        assert chunks(client)[-1]["finish_reason"] == "content_filter"
        assert client.events[-1] == "[DONE]"
        assert fleet.record.finish_reason == "content_filter"
        assert fleet.record.num_output_tokens < len(SAFE * 50)

    simulate_judged(scenario)


def test_a_word_on_the_border_of_two_pieces_is_found() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [SAFE + BAD]
        client = await asked(fleet)
        assert chunks(client)[-1]["finish_reason"] == "content_filter"

    simulate_judged(scenario, "own. And")


def test_text_without_an_end_of_a_sentence_is_judged_when_it_is_long() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = ["x" * (MAX_PIECE_CHARS * 3)]
        client = await asked(fleet)
        assert text_of(client) == "x" * (MAX_PIECE_CHARS * 3)
        assert len(judge.asked) >= 4
        assert max(len(texts[0]) for texts in judge.asked) < 2 * MAX_PIECE_CHARS

    simulate_judged(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_choice_that_is_refused_ends_alone(stream: bool) -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [SAFE, BAD]
        client = await asked(fleet, n=2, stream=stream)
        if stream:
            ends = {c["index"]: c["finish_reason"] for c in chunks(client) if c["finish_reason"]}
        else:
            choices = json.loads(client.body)["choices"]
            ends = {choice["index"]: choice["finish_reason"] for choice in choices}
            assert "safety;dur=" in client.headers["server-timing"]
        assert ends == {0: "stop", 1: "content_filter"}

    simulate_judged(scenario)


def test_a_refused_response_is_incomplete() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [BAD]
        client = Client({"model": "demo", "input": "hi"}, "/v1/responses")
        await serve(app_of(fleet), client)
        response = json.loads(client.body)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "content_filter"}

    simulate_judged(scenario)


def test_a_refused_prompt_reaches_no_worker() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "a forbidden thing"}]},
            {"role": "user", "content": "more"},
        ]
        client = await asked(fleet, messages=messages)
        assert client.status == 400
        assert json.loads(client.body)["error"]["code"] == "content_filter"
        assert not fleet.worker.submits
        assert "safety;dur=100.0" in client.headers["server-timing"]

    simulate_judged(scenario)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": "forbidden"}}]},
        {"chat_template_kwargs": {"persona": ["forbidden"]}},
        {"messages": [{"role": "user", "content": "hi", "name": "forbidden"}]},
        {"messages": [{"role": "assistant", "content": "", "reasoning": "forbidden"}]},
    ],
)
async def test_all_that_a_client_may_write_into_a_conversation_is_judged(
    fields: dict[str, Any],
) -> None:
    request = chat.parse(json.dumps(CHAT | fields).encode())
    judge = WordJudge()
    judge.wait_s = 0
    with pytest.raises(InvalidRequest, match="safety"):
        await check_prompt(SafetyHook(judge, TIMEOUT_S, fails_open=False), request, ())


@pytest.mark.parametrize(
    "prompt", ["a forbidden thing", list(b"a forbidden thing"), ["fine", "forbidden"]]
)
def test_prompts_of_text_and_of_token_ids_are_judged(prompt: Any) -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        client = Client({"model": "demo", "prompt": prompt}, "/v1/completions")
        await serve(app_of(fleet), client)
        assert json.loads(client.body)["error"]["code"] == "content_filter"
        assert len(fleet.quota.settled) == (2 if prompt[0] == "fine" else 1)

    simulate_judged(scenario)


@pytest.mark.parametrize("trouble", ["away", "slow"])
@pytest.mark.parametrize("fails_open", [True, False])
def test_what_holds_while_the_hook_does_not_answer_is_a_setting(
    trouble: str, fails_open: bool
) -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        judge.is_away, judge.wait_s = trouble == "away", TIMEOUT_S * 9 if trouble == "slow" else 0
        client = await asked(fleet)
        if fails_open:
            assert client.status == 200
            assert client.events[-1] == "[DONE]"
        else:
            assert client.status == 503
            assert json.loads(client.body)["error"]["code"] == "safety_unavailable"
            assert client.headers["x-should-retry"] == "true"

    simulate_judged(scenario, fails_open=fails_open)


def test_a_hook_that_fails_in_mid_answer_ends_it_with_an_error() -> None:
    async def scenario(fleet: Fleet, judge: WordJudge) -> None:
        fleet.worker.texts = [SAFE * 200]
        client = Client(CHAT)
        running = fleet.tasks.create_task(serve(app_of(fleet), client))
        async with asyncio.timeout(60):
            while not text_of(client):
                await asyncio.sleep(0.05)
        judge.is_away = True
        await running
        assert json.loads(client.events[-1])["error"]["code"] == "safety_unavailable"
        assert (SAFE * 200).startswith(text_of(client))

    simulate_judged(scenario)
