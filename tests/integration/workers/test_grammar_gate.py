"""Grammars under attack: each limit holds, and other requests go on."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from baton.engine.protocol.messages import EngineInfo, Grammar
from baton.system.clock import SystemClock
from baton.testing.tokenizer_folder import EOS, build_tokenizer_folder
from baton.wire.failures import BatonError, InvalidRequest, Overloaded
from baton.wire.kv_spec import KVSpec
from baton.worker import grammar_gate
from baton.worker.grammar_gate import GrammarGate

WORD = Grammar("regex", "[a-z]+")


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def gbnf(text: str) -> Grammar:
    return Grammar("ebnf", text)


def patterns(num: int) -> Grammar:
    return schema({"patternProperties": {f"^a{{{i}}}b*$": {"type": "string"} for i in range(num)}})


# Takes 7 s of processor time and more when nobody stops it.
BOMB = patterns(300)
NESTED = '{"items":' * 50_000 + "true" + "}" * 50_000

HOSTILE = [
    ("nested groups", Grammar("regex", "(" * 8000 + "a" + ")" * 8000), "nested"),
    ("a back reference", Grammar("regex", r"(a)\1"), "backreferences"),
    ("no terminal", gbnf("start: start"), "no text matches"),
    ("an unknown rule", gbnf('root ::= "a" b'), "no rule named b"),
    ("deep groups", gbnf("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000), "nested too deeply"),
    ("no grammar", gbnf("hello"), "neither a rule start"),
    ("a reference to itself", schema({"$ref": "#"}), "no text matches"),
    ("an outside reference", schema({"$ref": "http://127.0.0.1/x"}), "127.0.0.1"),
    ("a nested schema", Grammar("json_schema", NESTED), "not JSON"),
    ("a list", Grammar("json_schema", "[]"), "JSON object"),
]  # fmt: skip


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> EngineInfo:
    file = build_tokenizer_folder(tmp_path_factory.mktemp("model")) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    spec = KVSpec.of_layers(16, [(1, 4, 2, "float32")])
    ends = [tokenizer.token_to_id(EOS)]
    num_tokens = tokenizer.get_vocab_size()
    return EngineInfo("fp", "m", "1", spec, 64, 1024, 8, num_tokens, ends, str(file))


@asynccontextmanager
async def running_gate(info: EngineInfo, max_cpu_s: float) -> AsyncIterator[GrammarGate]:
    gate = GrammarGate(info, SystemClock(), max_cpu_s)
    running = asyncio.ensure_future(gate.run())
    yield gate
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert gate._child.pid is None


@pytest.fixture
async def gate(info: EngineInfo) -> AsyncIterator[GrammarGate]:
    """With time enough for all that ends by itself, on any machine."""
    async with running_gate(info, max_cpu_s=60) as running:
        yield running


async def outcome(gate: GrammarGate, grammar: Grammar) -> Grammar | BatonError:
    future: asyncio.Future[Grammar | BatonError] = asyncio.get_running_loop().create_future()
    gate.check(grammar, future.set_result)
    return await future


async def refusal(gate: GrammarGate, grammar: Grammar) -> str:
    error = await outcome(gate, grammar)
    assert isinstance(error, InvalidRequest)
    assert (error.reason, error.param) == ("invalid_grammar", "response_format")
    assert "\n" not in error.message
    assert len(error.message) < 300
    return error.message


async def test_hostile_grammars_are_refused_and_the_child_lives(gate: GrammarGate):
    assert await outcome(gate, WORD) == WORD
    pid = gate._child.pid
    for name, grammar, reason in HOSTILE:
        assert reason in await refusal(gate, grammar), name
    assert gate._child.pid == pid


async def test_a_bomb_is_killed_while_known_grammars_pass(
    info: EngineInfo, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grammar_gate, "DEADLINE_S", 200)
    async with running_gate(info, max_cpu_s=1.0) as gate:
        assert await outcome(gate, WORD) == WORD
        pid = gate._child.pid
        bomb = asyncio.ensure_future(refusal(gate, BOMB))
        other = asyncio.ensure_future(outcome(gate, Grammar("regex", "[0-9]+")))
        await asyncio.sleep(0)
        passed: list[Grammar | BatonError] = []
        gate.check(WORD, passed.append)
        assert passed == [WORD]
        assert "too much time or memory" in await bomb
        assert await other == Grammar("regex", "[0-9]+")
        assert gate._child.pid not in (None, pid)
        # It is known now: nobody waits for it again.
        gate.check(BOMB, passed.append)
        assert isinstance(passed[-1], InvalidRequest)


async def test_a_child_that_hangs_is_killed_at_the_deadline(
    gate: GrammarGate, monkeypatch: pytest.MonkeyPatch
):
    await outcome(gate, WORD)
    assert gate._child.pid is not None
    os.kill(gate._child.pid, signal.SIGSTOP)
    monkeypatch.setattr(grammar_gate, "DEADLINE_S", 0.2)
    # That is nothing to be held against the grammar.
    assert isinstance(await outcome(gate, Grammar("regex", "b+")), Overloaded)
    monkeypatch.undo()
    assert await outcome(gate, Grammar("regex", "b+")) == Grammar("regex", "b+")


async def test_who_leaves_takes_its_grammar_out_of_the_line_and_out_of_the_childs_hands(
    info: EngineInfo, monkeypatch: pytest.MonkeyPatch
):
    tried: list[Grammar] = []
    try_one = GrammarGate._try

    async def noted(gate: GrammarGate, grammar: Grammar) -> Grammar | BatonError:
        tried.append(grammar)
        return await try_one(gate, grammar)

    monkeypatch.setattr(grammar_gate, "DEADLINE_S", 600)
    monkeypatch.setattr(GrammarGate, "_try", noted)
    # A bomb that nobody stops would go off in the child's hands, and the child would live on.
    async with running_gate(info, max_cpu_s=600) as gate:
        assert await outcome(gate, WORD) == WORD
        pid = gate._child.pid
        told: list[Grammar | BatonError] = []
        in_hand, in_line = (lambda got: told.append(got)), (lambda got: told.append(got))
        gate.check(BOMB, in_hand)
        gate.check(patterns(301), in_line)
        digits = Grammar("regex", "[0-9]+")
        other = asyncio.ensure_future(outcome(gate, digits))
        while BOMB not in tried:
            await asyncio.sleep(0)
        gate.withdraw(in_line)
        gate.withdraw(in_hand)
        assert await other == digits
        assert gate._child.pid not in (None, pid)
        assert tried == [WORD, BOMB, digits]
        assert told == []


async def test_gbnf_comes_out_as_lark(gate: GrammarGate):
    passed = await outcome(gate, gbnf('root ::= "a" digits\ndigits ::= [0-9]+'))
    assert isinstance(passed, Grammar)
    assert "start:" in passed.text
    assert await outcome(gate, passed) == passed


async def test_more_than_can_wait_is_refused(gate: GrammarGate, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_gate, "MAX_WAITING", 2)
    waiting = [asyncio.ensure_future(outcome(gate, Grammar("regex", f"a{{{i}}}"))) for i in "123"]
    outcomes = await asyncio.gather(*waiting)
    assert [type(one) for one in outcomes] == [Grammar, Grammar, Overloaded]


async def test_a_model_without_a_tokenizer_file_serves_no_grammars(info: EngineInfo):
    gate = GrammarGate(
        EngineInfo("fp", "m", "1", info.kv_spec, 64, 1024, 8, 100, [1]), SystemClock()
    )
    assert "tokenizer" in await refusal(gate, WORD)


async def test_a_tokenizer_that_cannot_serve_says_so(info: EngineInfo, tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    broken = EngineInfo("fp", "m", "1", info.kv_spec, 64, 1024, 8, 100, [1], str(file))
    gate = GrammarGate(broken, SystemClock())
    running = asyncio.ensure_future(gate.run())
    assert "tokenizer does not allow structured output" in await refusal(gate, WORD)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
