"""Structured output in the engine: what is sampled matches, whatever happens around it."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from baton.engine.grammar import compiler, state, states
from baton.engine.protocol.messages import Abort, Bind, Credit, Fork, Grammar, Start
from baton.engine.step import step_masks
from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.inline_grammars import InlineGrammars
from baton.testing.tokenizer_folder import EOS, build_tokenizer_folder

PROMPT = list(range(40, 60))
WORD = Grammar("regex", "[a-z]{3,8}")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "bob"]}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


class Bench:
    """An engine with grammars and a FakeRunner that speaks the tokenizer's vocabulary."""

    def __init__(self, tokenizer_file: Path, **sizes: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        runner = FakeRunner(
            vocab_size=self.tokenizer.get_vocab_size(), eos_token_id=self.tokenizer.token_to_id(EOS)
        )
        self.grammars = InlineGrammars(tokenizer_file, runner)
        self.driver = EngineDriver(runner, self.grammars, **{"num_blocks": 64, **sizes})

    def text(self, seq_id: int) -> str:
        return str(self.tokenizer.decode(self.driver.tokens[seq_id], skip_special_tokens=True))

    def run(self, grammar: Grammar, **fields: object) -> str:
        """The output of one sequence under `grammar`, which must end by itself."""
        fields = {"max_tokens": 200, "temperature": 1.0, **fields}
        self.driver.step(add_sequence(1, PROMPT, grammar=grammar, **fields))
        self.driver.run()
        assert self.driver.finished[1] == "stop"
        return self.text(1)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_tokenizer_folder(tmp_path_factory.mktemp("model"))
    return folder / "tokenizer.json"


@pytest.fixture
def make(tokenizer_file: Path) -> Callable[..., Bench]:
    return lambda **sizes: Bench(tokenizer_file, **sizes)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (WORD, "[a-z]{3,8}"),
        (Grammar("regex", r"^\d{4}-\d{2}$"), "[0-9]{4}-[0-9]{2}"),
        (Grammar("choice", json.dumps(["yes", 'a "b" \\ c'])), r'yes|a "b" \\ c'),
        (Grammar("ebnf", 'start: "x" /[0-9]{1,3}/ ("," "y")?'), "x[0-9]{1,3}(,y)?"),
        (
            Grammar("json_schema", json.dumps(SCHEMA)),
            r'\{\s*"name"\s*:\s*"(ada|bob)"\s*,\s*"ok"\s*:\s*(true|false)\s*\}',
        ),
    ],
)
def test_output_matches_the_grammar_and_ends(
    make: Callable[..., Bench], grammar: Grammar, pattern: str
):
    for seed in range(3):
        assert re.fullmatch(pattern, make().run(grammar, seed=seed))


def test_end_token_ends_a_grammar_even_when_it_is_ignored_otherwise(make: Callable[..., Bench]):
    assert make().run(WORD, ignore_eos=True).isalpha()


def test_other_sequences_are_untouched(make: Callable[..., Bench]):
    bench = make()
    bench.driver.step(
        add_sequence(1, PROMPT, grammar=WORD, max_tokens=50),
        add_sequence(2, PROMPT[:9], max_tokens=20),
    )
    bench.driver.run()
    assert bench.driver.tokens[2] == bench.driver.lone_run(PROMPT[:9], 20)


def test_sequence_waits_for_its_grammar_and_others_do_not(make: Callable[..., Bench]):
    bench = make()
    bench.grammars.compiling.is_held = True
    bench.driver.step(add_sequence(1, PROMPT, grammar=WORD), add_sequence(2, PROMPT, max_tokens=5))
    bench.driver.run()
    assert 1 not in bench.driver.tokens
    assert bench.driver.finished == {2: "length"}
    # The core looks again soon, although there is no command and no deadline.
    assert bench.driver.engine.next_deadline() is not None
    bench.grammars.compiling.release()
    bench.driver.run()
    assert bench.driver.finished[1] == "stop"
    assert bench.driver.engine.next_deadline() is None


def test_aborted_while_its_grammar_is_compiled(make: Callable[..., Bench]):
    bench = make()
    bench.grammars.compiling.is_held = True
    bench.driver.step(add_sequence(1, PROMPT, grammar=WORD))
    bench.driver.step(Abort(1))
    bench.grammars.compiling.release()
    bench.driver.run()
    assert bench.driver.finished == {}
    assert not bench.grammars.is_awaited


def test_bad_grammar_ends_its_own_sequence_with_the_reason(make: Callable[..., Bench]):
    bench = make()
    events = bench.driver.step(add_sequence(1, PROMPT, grammar=Grammar("regex", "(?=a)b")))
    [finished] = events.finished
    assert finished.reason == "invalid_grammar"
    assert "look-around" in finished.message
    assert "\n" not in finished.message


def test_grammar_without_a_tokenizer_is_refused():
    driver = EngineDriver(FakeRunner(), num_blocks=16)
    events = driver.step(add_sequence(1, PROMPT, grammar=WORD))
    assert events.refused[0].reason == "unsupported_parameter"


def test_late_mask_costs_its_sequence_a_step_and_nobody_else(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_masks, "GRACE_S", 0.0)
    bench, on_time = make(), make()
    expected = on_time.run(WORD, seed=5)
    bench.driver.step(
        add_sequence(1, PROMPT, grammar=WORD, max_tokens=200, temperature=1.0, seed=5),
        add_sequence(2, PROMPT[:7], max_tokens=40),
    )
    while 1 not in bench.driver.finished:
        bench.grammars.working.is_held = True
        before = len(bench.driver.tokens.get(2, []))
        for _ in range(3):
            bench.driver.step()
        assert len(bench.driver.tokens[2]) == before + 3
        bench.grammars.working.release()
        bench.grammars.working.is_held = False
        bench.driver.step()
    assert bench.text(1) == expected
    bench.driver.run()
    assert bench.driver.tokens[2] == bench.driver.lone_run(PROMPT[:7], 40)


def test_preempted_sequence_goes_on_in_its_grammar(make: Callable[..., Bench]):
    fields = {"grammar": Grammar("regex", "[a-z]{200,240}"), "temperature": 1.0, "seed": 3}
    expected = make().run(max_tokens=400, **fields)
    bench = make(num_blocks=11)
    bench.driver.step(
        add_sequence(2, PROMPT * 3, max_tokens=90, priority=1, ignore_eos=True),
        add_sequence(1, PROMPT, max_tokens=400, **fields),
    )
    num_preemptions = 0
    while bench.driver.engine.has_work:
        num_preemptions += bench.driver.step().num_preemptions
    assert num_preemptions > 0
    assert bench.text(1) == expected


def test_resumed_sequence_replays_its_output(make: Callable[..., Bench]):
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    whole = make()
    text = whole.run(schema, seed=2)
    tokens = whole.driver.tokens[1]
    for num_emitted in (1, len(tokens) // 2, len(tokens) - 1):
        bench = make()
        bench.driver.tokens[1] = tokens[:num_emitted]
        assert bench.run(schema, seed=2, emitted=tokens[:num_emitted]) == text


def test_handed_over_sequence_goes_on_in_its_grammar(make: Callable[..., Bench]):
    schema = Grammar("json_schema", json.dumps(SCHEMA))
    fields = {"grammar": schema, "max_tokens": 200, "temperature": 1.0, "seed": 4}
    whole, prefill, decode = make(), make(), make()
    text = whole.run(schema, seed=4)
    prefill.driver.step(add_sequence(1, PROMPT, kind="prefill", credit=1, **fields))
    [first] = prefill.driver.tokens[1]
    assert first == whole.driver.tokens[1][0]
    decode.driver.step(add_sequence(1, PROMPT, kind="remote", **fields))
    decode.grammars.working.is_held = True
    [bound] = decode.driver.step(Bind(1)).bound
    for source, target in enumerate(bound.rows):
        decode.driver.row(target)[:] = prefill.driver.row(source)
    decode.driver.tokens[1] = [first]
    decode.driver.step(Start(1, first))
    decode.grammars.working.release()
    decode.grammars.working.is_held = False
    decode.driver.run()
    assert decode.text(1) == text


def test_forks_sample_their_own_outputs_under_one_grammar(make: Callable[..., Bench]):
    bench = make()
    forks = (Fork(2, 1), Fork(3, 2))
    bench.driver.step(
        add_sequence(1, PROMPT, grammar=WORD, max_tokens=50, temperature=1.0, forks=forks)
    )
    bench.driver.run()
    texts = [bench.text(seq_id) for seq_id in (1, 2, 3)]
    assert all(re.fullmatch("[a-z]{3,8}", text) for text in texts)
    assert len(set(texts)) > 1


def test_grammar_without_credit_waits(make: Callable[..., Bench]):
    bench = make()
    bench.driver.step(add_sequence(1, PROMPT, grammar=WORD, max_tokens=50, credit=1))
    bench.driver.run()
    assert len(bench.driver.tokens[1]) == 1
    bench.driver.step(Credit(1, 100))
    bench.driver.run()
    assert re.fullmatch("[a-z]{3,8}", bench.text(1))


@pytest.mark.parametrize("seed", range(3))
def test_guesses_and_grammars_go_together(make: Callable[..., Bench], seed: int):
    grammar = Grammar("regex", "((ab|ba)[ab] ){12}[a-z]{2}")
    plain, guessing = make(), make(num_draft_tokens=5)
    expected = plain.run(grammar, seed=seed)
    num_accepted_tokens = num_draft_tokens = 0
    guessing.driver.step(
        add_sequence(1, PROMPT, grammar=grammar, max_tokens=200, temperature=1.0, seed=seed)
    )
    while guessing.driver.engine.has_work:
        events = guessing.driver.step()
        num_accepted_tokens += events.num_accepted_tokens
        num_draft_tokens += events.num_draft_tokens
    assert guessing.text(1) == expected
    assert 0 < num_accepted_tokens < num_draft_tokens


def test_guesses_whose_masks_are_late_are_given_up(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_masks, "GRACE_S", 0.0)
    grammar = Grammar("regex", "(abc ){12}")
    bench = make(num_draft_tokens=4)
    bench.driver.step(add_sequence(1, PROMPT, grammar=grammar, max_tokens=200))
    num_steps = 0
    while 1 not in bench.driver.finished and num_steps < 200:
        # Nothing is ready in time that is asked for inside a step.
        bench.grammars.working.is_held = True
        bench.driver.step()
        bench.grammars.working.release()
        num_steps += 1
    assert bench.text(1) == "abc " * 12


def test_a_grammar_that_grows_too_large_ends_its_own_sequence(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 60)
    bench = make()
    grammar = Grammar("regex", "(.|\\n)*a(.|\\n){30}b")
    bench.driver.step(
        add_sequence(1, PROMPT, grammar=grammar, max_tokens=200, temperature=1.0),
        add_sequence(2, PROMPT[:9], max_tokens=9),
    )
    for _ in range(300):
        finished = bench.driver.step().finished
        if any(one.seq_id == 1 for one in finished):
            break
    [failed] = [one for one in finished if one.seq_id == 1]
    assert (failed.reason, "too many states" in failed.message) == ("invalid_grammar", True)
    assert 0 < failed.num_output_tokens == len(bench.driver.tokens[1])
    bench.driver.run()
    assert bench.driver.tokens[2] == bench.driver.lone_run(PROMPT[:9], 9)
    # What the sequence had grown is not kept for the next one.
    assert grammar not in bench.grammars.states.kept


def test_a_sequence_has_a_limited_time_for_its_masks(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state, "MAX_SPENT_S", 0.5)
    bench = make()
    times = itertools.count()
    bench.grammars.states._cpu_clock = lambda: next(times) * 0.01
    bench.driver.step(
        add_sequence(1, PROMPT, grammar=Grammar("regex", "[a-z]{900}"), max_tokens=400)
    )
    bench.driver.run()
    assert bench.driver.finished == {1: "invalid_grammar"}
    assert 40 <= len(bench.driver.tokens[1]) <= 50


def test_compiled_grammars_are_kept_up_to_a_number(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(states, "MAX_CACHED", 2)
    bench = make()
    for number, text in enumerate(["a", "b", "a", "c", "b"], 1):
        bench.driver.step(add_sequence(number, PROMPT, grammar=Grammar("regex", text)))
        bench.driver.run()
    assert [grammar.text for grammar in bench.grammars.states.kept] == ["c", "b"]
    assert set(bench.driver.finished.values()) == {"stop"}


def test_a_bad_grammar_of_a_handed_over_sequence_waits_for_its_blocks(make: Callable[..., Bench]):
    """Until Start the front may be writing into them."""
    bench = make()
    bench.grammars.compiling.is_held = True
    bad = Grammar("regex", "(?=a)b")
    bench.driver.step(add_sequence(1, PROMPT, kind="remote", grammar=bad, max_tokens=9))
    bench.driver.step(Bind(1))
    bench.grammars.compiling.release()
    bench.driver.step()
    assert bench.driver.finished == {}
    bench.driver.tokens[1] = [5]
    bench.driver.step(Start(1, 5))
    assert bench.driver.finished == {1: "invalid_grammar"}
    assert bench.driver.num_free_blocks == 64
