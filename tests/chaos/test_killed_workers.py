"""Workers that die in the middle of their work: clients see a pause, never a gap or a repeat."""

import os
from functools import partial
from typing import Any

import pytest

from baton.testing.process_faults import ProcessFault, WrongTarget
from tests.chaos.conftest import Target
from tests.chaos.streams import Answer, Stream, assert_same, story
from tests.chaos.trials import Missed, Trials

NUM_TOKENS = 160
MAX_STALL_P95_S = 2.0
# Four long prompts, some of them twice, on whatever the machine has left.
MAX_PREFILLS_S = 30.0
SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 4},
        "age": {"type": "integer"},
    },
    "required": ["names", "age"],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 7},
    "two choices": {"n": 2, "temperature": 0.9, "seed": 11},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "JSON schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
        },
        "temperature": 0.7,
        "seed": 3,
        "ignore_eos": False,
    },
}


def bodies(target: Target) -> list[dict[str, Any]]:
    """One of each variant that the engine serves, and one that stops at a string from the middle
    of its answer."""
    made = [story(max_tokens=NUM_TOKENS, **options) for options in VARIANTS.values()]
    made = [body for body in made if target.serves(body)]
    text = target.right_answer(made[0]).texts[0]
    stop = text[len(text) // 2 : len(text) // 2 + 12]
    return [*made, story(max_tokens=NUM_TOKENS, stop=[stop])]


def kill_under_load(target: Target, role: str, number: int, *, core: bool) -> float:
    """All variants at once; one worker of the role dies at a random moment. Returns the stall."""
    target.wait_until_able()
    wanted = bodies(target)
    right = [target.right_answer(body) for body in wanted]
    streams = [target.stream(body) for body in wanted]
    streams[0].wait_for(target.rng.randint(1, NUM_TOKENS // 2))
    num_moves = target.num_moves()
    busy = target.busy(role)
    if busy:
        target.fault(busy[0], core=core).kill().verify()
    stall_s = join_all(streams, wanted, right)
    if target.num_moves() == num_moves:
        raise Missed
    return stall_s


def join_all(streams: list[Stream], wanted: list[dict[str, Any]], right: list[Answer]) -> float:
    """Every stream ends as it does undisturbed. Returns the longest stall."""
    answers = [stream.join() for stream in streams]
    for body, answer, expected in zip(wanted, answers, right, strict=True):
        try:
            assert_same(answer, expected)
        except AssertionError as error:
            raise AssertionError(f"{body}: {error}") from error
    return max(answer.stall_s for answer in answers)


def num_tokens_of_prefill(target: Target) -> float:
    """Output tokens that prefill workers have written."""
    return sum(target.counts("prefill", "vllm:generation_tokens_total").values())


def test_streams_survive_the_death_of_their_decode_worker(target: Target, trials: Trials) -> None:
    kill = partial(kill_under_load, target, "decode", core=False)
    trials.run("kill -9 decode worker", 200, kill, max_p95_s=MAX_STALL_P95_S)


def test_streams_survive_the_death_of_their_core(target: Target, trials: Trials) -> None:
    kill = partial(kill_under_load, target, "decode", core=True)
    trials.run("kill -9 decode core", 50, kill, max_p95_s=MAX_STALL_P95_S)


def test_streams_go_on_at_prefill_workers_when_every_decode_worker_dies(
    target: Target, trials: Trials
) -> None:
    def trial(number: int) -> float:
        target.wait_until_whole()
        wanted = bodies(target)
        right = [target.right_answer(body) for body in wanted]
        num_before = num_tokens_of_prefill(target)
        streams = [target.stream(body) for body in wanted]
        streams[0].wait_for(target.rng.randint(1, NUM_TOKENS // 2))
        num_moves = target.num_moves()
        faults = [target.fault(name) for name in target.replicas("decode")]
        for fault in faults:
            fault.kill()
        for fault in faults:
            fault.verify()
        stall_s = join_all(streams, wanted, right)
        if target.num_moves() == num_moves:
            raise Missed
        # Else they write the first token of each choice, and no more.
        assert num_tokens_of_prefill(target) - num_before > NUM_TOKENS // 2
        return stall_s

    trials.run("kill -9 every decode worker", 25, trial)


def test_a_dying_prefill_worker_costs_a_new_prefill_elsewhere(
    target: Target, trials: Trials
) -> None:
    question = "Tell me, in a few words, about the price of tea. " * 120

    def trial(number: int) -> float:
        target.wait_until_able()
        # Each a prompt of its own: what one has computed is no prefix of another.
        questions = [f"{number}.{stream} {question}" for stream in range(4)]
        wanted = [story(max_tokens=8, question=each) for each in questions]
        streams = [target.stream(body) for body in wanted]
        while not (busy := target.busy("prefill")) and not all(s.is_over for s in streams):
            pass
        if busy:
            target.fault(busy[0]).kill().verify()
        answers = [stream.join() for stream in streams]
        for body, answer in zip(wanted, answers, strict=True):
            assert_same(answer, target.right_answer(body))
        if not busy:
            raise Missed
        return max(answer.first_text_s for answer in answers)

    trials.run("kill -9 prefill worker", 50, trial, max_s=MAX_PREFILLS_S)


def test_a_fault_at_a_wrong_pid_fails_its_test(target: Target, trials: Trials) -> None:
    """The process that runs this test is none of the stack's."""
    assert target.stack.process is not None
    with pytest.raises(WrongTarget):
        ProcessFault(os.getpid(), stack_pid=target.stack.process.pid)
    fault = target.fault("quota-1")
    fault.kill().verify()
    with pytest.raises(WrongTarget):
        fault.kill()
