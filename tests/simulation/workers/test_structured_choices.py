"""Structured output between two workers: gate, handoff, resumed attempts, and ends of all kinds."""

import asyncio
import logging
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from baton.engine.grammar import compiler
from baton.testing.engine_driver import encode_tokens
from baton.testing.inline_grammars import InlineGate
from baton.testing.tokenizer_folder import EOS, build_tokenizer_folder
from baton.testing.virtual_clock import virtual
from baton.wire.v1 import worker_pb2
from tests.simulation.workers.fleet import STEP_S, Fleet, fleet

PROMPT = list(range(100, 150))
PATTERN = "[a-z]{12,20}"
WORD = {"regex": PATTERN, "temperature": 1.0, "seed": 3, "max_tokens": 60}


class Speaking:
    """Makes fleets that know a tokenizer's vocabulary, and reads what they say."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(self._file))

    def fleet(self) -> AbstractAsyncContextManager[Fleet]:
        sizes = {"tokenizer_file": self._file}
        options = {
            "vocab_size": self._tokenizer.get_vocab_size(),
            "eos_token_id": self._tokenizer.token_to_id(EOS),
        }
        return fleet(decode_sizes=sizes, prefill_sizes=sizes, runner_options=options)

    def text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Speaking:
    return Speaking(build_tokenizer_folder(tmp_path_factory.mktemp("model")))


def gate_of(f: Fleet) -> InlineGate:
    gate = f.decode.deps.grammar_gate
    assert isinstance(gate, InlineGate)
    return gate


@virtual
async def test_handed_over_choices_match_and_are_those_of_a_local_run(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        remote = await (await f.gateway.submit(PROMPT, num_choices=3, **WORD)).over()
        local = await (
            await f.gateway.submit(PROMPT, num_choices=3, prefill_endpoint="", **WORD)
        ).over()

        assert remote.tokens == local.tokens
        texts = [speaking.text(tokens) for tokens in remote.tokens.values()]
        assert all(re.fullmatch(PATTERN, text) for text in texts)
        assert len(set(texts)) == 3
        assert {finish.reason for finish in remote.finishes.values()} == {"stop"}
        await f.settle(1)


@virtual
async def test_what_is_wrong_with_a_grammar_is_told_to_its_client_and_no_log(
    speaking: Speaking, caplog: pytest.LogCaptureFixture
) -> None:
    async with speaking.fleet() as f:
        with caplog.at_level(logging.DEBUG):
            schema = '{"type": "a-private-word"}'
            answer = await (await f.gateway.submit(PROMPT, json_schema=schema)).over()
            await f.settle(1)
        (refused,) = answer.refused
        assert "a-private-word" in refused.failure.message
        lines = [str(vars(record)) for record in caplog.records]
        assert any(refused.failure.reason in line for line in lines)
        assert not any("private" in line for line in lines)


@pytest.mark.parametrize("where", [{}, {"prefill_endpoint": ""}], ids=["there", "here"])
@virtual
async def test_credit_that_comes_while_the_grammar_is_tried_counts(
    speaking: Speaking, where: dict[str, Any]
) -> None:
    async with speaking.fleet() as f:
        fields = {"num_choices": 2, **WORD, **where}
        whole = (await (await f.gateway.submit(PROMPT, **fields)).over()).tokens
        gate_of(f).is_held = True
        answer = await f.gateway.submit(PROMPT, initial_credit_tokens=1, **fields)
        for choice in whole:
            await f.gateway.credit(answer.handle, choice, 60)
        await asyncio.sleep(1)
        gate_of(f).release()
        async with asyncio.timeout(10):
            await answer.over()
        assert answer.tokens == whole
        await f.settle(1)


@virtual
async def test_an_attempt_resumed_at_any_token_goes_on_alike(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        tokens = (await (await f.gateway.submit(PROMPT, **WORD)).over()).tokens[0]
        for num_emitted in range(1, len(tokens)):
            emitted = worker_pb2.EmittedTokens(token_ids=encode_tokens(tokens[:num_emitted]))
            answer = await (await f.gateway.submit(PROMPT, emitted=[emitted], **WORD)).over()
            assert answer.tokens[0] == tokens[num_emitted:]
        await f.settle(1)


@pytest.mark.parametrize("where", [{}, {"prefill_endpoint": ""}], ids=["there", "here"])
@virtual
async def test_choices_of_a_moved_request_go_on_each_at_its_place_in_the_grammar(
    speaking: Speaking, where: dict[str, Any]
) -> None:
    async with speaking.fleet() as f:
        fields = {"num_choices": 3, **WORD, **where}
        whole = (await (await f.gateway.submit(PROMPT, **fields)).over()).tokens
        for num_emitted in range(1, min(map(len, whole.values())), 3):
            emitted = [
                worker_pb2.EmittedTokens(
                    choice=choice, token_ids=encode_tokens(whole[choice][:num])
                )
                for choice, num in ((0, num_emitted), (2, num_emitted // 2))
            ]
            answer = await f.gateway.submit(PROMPT, emitted=emitted, ended_choices=[1], **fields)
            answer.num_choices = 2
            await answer.over()
            left = {0: whole[0][num_emitted:], 2: whole[2][num_emitted // 2 :]}
            assert answer.tokens == left
        await f.settle(1)


@virtual
async def test_gbnf_reaches_the_prefill_worker_as_lark(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        grammar = 'root ::= "yes" | "no"'
        answer = await (await f.gateway.submit(PROMPT, ebnf_grammar=grammar)).over()

        assert speaking.text(answer.tokens[0]) in ("yes", "no")
        [prefill] = f.kinds("prefill")
        assert "start:" in prefill.sampling.ebnf_grammar
        await f.settle(1)


@pytest.mark.parametrize("endpoint", [{}, {"prefill_endpoint": ""}])
@virtual
async def test_a_refused_grammar_holds_nothing(speaking: Speaking, endpoint: Any) -> None:
    async with speaking.fleet() as f:
        answer = await (await f.gateway.submit(PROMPT, regex="(?=a)b", **endpoint)).over()

        [refused] = answer.refused
        assert (refused.failure.reason, refused.failure.param) == (
            "invalid_grammar",
            "response_format",
        )
        assert f.frames == []
        await f.settle(1)


@virtual
async def test_cancelled_while_the_grammar_is_tried(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        gate_of(f).is_held = True
        answer = await f.gateway.submit(PROMPT, request_id="r", **WORD)
        await f.gateway.cancel("r")
        assert (await answer.over()).finishes[0].reason == "cancelled"
        gate_of(f).release()
        await f.settle(1)


@virtual
async def test_one_choice_is_cancelled_while_the_grammar_is_tried(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        gate_of(f).is_held = True
        answer = await f.gateway.submit(PROMPT, num_choices=3, **WORD)
        await asyncio.sleep(STEP_S)
        await f.gateway.cancel_choices(answer.handle, 0)
        await asyncio.sleep(STEP_S)
        gate_of(f).release()
        await answer.over()
        assert answer.tokens.keys() == {1, 2}
        assert [answer.finishes[i].reason for i in range(3)] == ["cancelled", "stop", "stop"]
        await f.settle(1)


@virtual
async def test_the_deadline_passes_while_the_grammar_is_tried(speaking: Speaking) -> None:
    async with speaking.fleet() as f:
        gate_of(f).is_held = True
        answer = await (await f.gateway.submit(PROMPT, deadline_ms=50, **WORD)).over()
        assert answer.refused[0].failure.reason == "deadline_exceeded"
        gate_of(f).release()
        await f.settle(1)


@virtual
async def test_a_grammar_that_fails_in_mid_stream_ends_its_stream_with_the_reason(
    speaking: Speaking,
) -> None:
    async with speaking.fleet() as f:
        gate_of(f).is_held = True
        answer = await f.gateway.submit(PROMPT, **{**WORD, "regex": "(.|\\n)*a(.|\\n){30}b"})
        await asyncio.sleep(STEP_S)
        gate_of(f).release()
        with pytest.MonkeyPatch.context() as patch:
            # The cores have less room than the gate.
            patch.setitem(compiler.LIMITS, "max_lexer_states", 60)
            await answer.over()

        assert answer.tokens[0]
        failure = answer.finishes[0].failure
        assert (failure.reason, failure.param) == ("invalid_grammar", "response_format")
        assert "too many states" in failure.message
        await f.settle(1)
