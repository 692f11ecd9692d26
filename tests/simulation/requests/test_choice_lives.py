"""Random lives of requests with several choices, and of beam searches, on tiny pools.

After each step: no block lost or written by two (FakeRunner). At the end: every choice that was not
aborted has the tokens of a lone run, and every block is free.
"""

import os
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Bind,
    Command,
    Credit,
    Fork,
    Release,
    Start,
)
from baton.testing.engine_driver import PLENTY_OF_CREDIT, EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.testing.lone_beam_search import lone_beam_search

BLOCK = 4
NUM_EXAMPLES = 1500 if os.environ.get("BATON_TEST_LONG") else 120


def make_driver(num_blocks: int, max_step_tokens: int, num_draft_tokens: int = 0) -> EngineDriver:
    runner = FakeRunner(
        block_size=BLOCK, max_model_len=44, vocab_size=40, mean_output_tokens=12, num_layers=1
    )
    sizes = {"max_num_seqs": 4, "max_step_tokens": max_step_tokens, "max_waiting": 6}
    return EngineDriver(runner, num_blocks=num_blocks, num_draft_tokens=num_draft_tokens, **sizes)


class Request:
    """One request and where its handoff stands."""

    def __init__(self, add: AddSequence) -> None:
        self.add = add
        self.choices = {add.seq_id: 0, **{fork.seq_id: fork.choice for fork in add.forks}}
        self.sources: list[int] = []
        self.targets: list[int] | None = None
        self.is_computed = False
        self.first_top: Any = None

    @property
    def can_complete(self) -> bool:
        return self.is_computed and self.targets is not None


class ChoiceLives(RuleBasedStateMachine):
    @initialize(
        budgets=st.tuples(st.integers(4, 20), st.integers(4, 20)),
        num_blocks=st.integers(20, 32),
        num_draft_tokens=st.sampled_from([0, 3]),
    )
    def build(self, budgets: tuple[int, int], num_blocks: int, num_draft_tokens: int) -> None:
        self.prefill = make_driver(24, budgets[0])
        self.decode = make_driver(num_blocks, budgets[1], num_draft_tokens)
        self.requests: list[Request] = []
        self.request_of: dict[int, Request] = {}
        self.handoffs: dict[int, Request] = {}
        self.live: set[int] = set()
        self.aborted: set[int] = set()

    @rule(
        kind=st.sampled_from(["local", "local", "remote"]),
        prompt=st.tuples(st.integers(0, 2), st.integers(1, 30)),
        num_choices=st.integers(1, 5),
        is_search=st.booleans(),
        limits=st.tuples(st.integers(1, 14), st.sampled_from([0, 1, 4, PLENTY_OF_CREDIT])),
        priority=st.integers(0, 2),
        search=st.tuples(
            st.sampled_from(["heuristic", "full", "never"]), st.sampled_from([1.0, 0.0, -0.5, 2.0])
        ),
    )
    def add(
        self,
        kind: str,
        prompt: tuple[int, int],
        num_choices: int,
        is_search: bool,
        limits: tuple[int, int],
        priority: int,
        search: tuple[str, float],
    ) -> None:
        first_id, (stem, length) = 10 * (1 + len(self.requests)), prompt
        params: dict[str, Any] = {"seed": stem}
        if is_search:
            params = {"beam_width": min(num_choices, 4), "early_stopping": search[0]}
            params["length_penalty"] = search[1]
            num_choices = min(num_choices, 4)
        add = add_sequence(
            first_id,
            [(stem * 7 + i * (stem + 1)) % 39 for i in range(length)],
            kind=kind,  # type: ignore[arg-type]
            max_tokens=limits[0],
            credit=limits[1],
            priority=priority,
            forks=tuple(Fork(first_id + choice, choice) for choice in range(1, num_choices)),
            **params,
        )
        request = Request(add)
        self.requests.append(request)
        self.live |= request.choices.keys()
        self.request_of |= dict.fromkeys(request.choices, request)
        self.step_decode(add)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def abort_one(self, data: st.DataObject) -> None:
        self.abort([data.draw(st.sampled_from(sorted(self.live)))])

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def abort_all(self, data: st.DataObject) -> None:
        request = self.request_of[data.draw(st.sampled_from(sorted(self.live)))]
        self.abort(sorted(self.live & request.choices.keys()))

    @rule(data=st.data(), more=st.integers(1, 10))
    @precondition(lambda self: self.live)
    def give_credit(self, data: st.DataObject, more: int) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.live)))
        num_emitted = len(self.decode.tokens.get(seq_id, []))
        self.step_decode(Credit(seq_id, num_emitted + more))

    @rule(num_steps=st.integers(1, 5))
    def run_decode(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step_decode()

    @rule(num_steps=st.integers(1, 5))
    def run_prefill(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step_prefill()

    @rule(data=st.data())
    @precondition(lambda self: any(r.can_complete for r in self.handoffs.values()))
    def complete_handoff(self, data: st.DataObject) -> None:
        ready = [seq_id for seq_id, r in self.handoffs.items() if r.can_complete]
        self.complete(self.handoffs[data.draw(st.sampled_from(ready))])

    @invariant()
    def nothing_is_held_for_requests_that_ended(self) -> None:
        if not self.live and not self.handoffs:
            self.all_is_free()

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        self.step_decode(*[Credit(seq_id, PLENTY_OF_CREDIT) for seq_id in sorted(self.live)])
        for _ in range(3000):
            if not self.live and not self.handoffs:
                break
            self.step_prefill()
            self.step_decode()
            for request in list(self.handoffs.values()):
                if request.can_complete:
                    self.complete(request)
        assert not self.live, f"sequences starve: {self.live}"
        self.all_is_free()
        for request in self.requests:
            self.has_the_tokens_of_a_lone_run(request)

    def abort(self, seq_ids: list[int]) -> None:
        """The front keeps a handoff for as long as one of its choices lives."""
        self.live -= set(seq_ids)
        self.aborted |= set(seq_ids)
        request = self.request_of[seq_ids[0]]
        self.step_decode(*[Abort(seq_id) for seq_id in seq_ids])
        is_over = not self.live & request.choices.keys()
        if is_over and self.handoffs.pop(request.add.seq_id, None) is not None:
            self.step_prefill(*[Release(seq_id) for seq_id in request.choices])

    def step_decode(self, *commands: Command) -> None:
        events = self.decode.step(*commands)
        for refused in events.refused:
            self.give_up(self.request_of[refused.seq_id])
        for finished in events.finished:
            self.live.remove(finished.seq_id)
        for admitted in events.admitted:
            request = self.request_of[admitted.seq_id]
            self.handoffs[admitted.seq_id] = request
            forks = () if request.add.sampling.beam_width else request.add.forks
            fields = {"kind": "prefill", "credit": 1, "forks": forks}
            fields["num_peer_blocks"] = admitted.num_cached_blocks
            self.step_prefill(msgspec.structs.replace(request.add, **fields))
        for bound in events.bound:
            self.handoffs[bound.seq_id].targets = bound.rows

    def give_up(self, request: Request) -> None:
        self.live -= request.choices.keys()
        self.aborted |= request.choices.keys()

    def step_prefill(self, *commands: Command) -> None:
        events = self.prefill.step(*commands)
        for refused in events.refused:
            if (request := self.handoffs.pop(refused.seq_id, None)) is not None:
                self.give_up(request)
                self.step_decode(*[Abort(seq_id) for seq_id in request.choices])
        for logprobs in events.logprobs:
            self.request_of[logprobs.seq_id].first_top = logprobs
        for seq_id in self.handoffs.keys() & set(events.token_seq_ids):
            self.handoffs[seq_id].is_computed = True
        for started in events.started:
            if started.seq_id in self.handoffs:
                self.handoffs[started.seq_id].sources = started.rows
                self.step_decode(Bind(started.seq_id))

    def complete(self, request: Request) -> None:
        """Copy the missing blocks and let the request decode."""
        assert request.targets is not None
        for source, target in zip(request.sources, request.targets, strict=True):
            self.decode.row(target)[:] = self.prefill.row(source)
        leader_id = request.add.seq_id
        del self.handoffs[leader_id]
        self.step_prefill(*[Release(seq_id) for seq_id in request.choices])
        if (top := request.first_top) is not None:
            start = Start(leader_id, 0, (), tuple(top.top_ids), tuple(top.top_logprobs))
        else:
            firsts = {seq_id: self.prefill.tokens[seq_id][0] for seq_id in request.choices}
            for seq_id in self.live & request.choices.keys():
                self.decode.tokens[seq_id] = [firsts[seq_id]]
            first = firsts.pop(leader_id)
            start = Start(leader_id, first, tuple(firsts.items()))
        self.step_decode(start)

    def all_is_free(self) -> None:
        for driver in (self.prefill, self.decode):
            load = driver.engine.measure_load()
            assert load.num_blocks_free == driver.engine.info.num_blocks
            assert (load.num_blocks_promised, load.num_running, load.num_waiting) == (0, 0, 0)

    def has_the_tokens_of_a_lone_run(self, request: Request) -> None:
        prompt = memoryview(request.add.token_ids).cast("I").tolist()
        runner, params = self.decode.runner, request.add.sampling
        left = [seq_id for seq_id in request.choices if seq_id not in self.aborted]
        results = lone_beam_search(runner, prompt, params) if params.beam_width and left else []
        for seq_id in left:
            choice = request.choices[seq_id]
            lone = results[choice] if results else runner.lone_run(prompt, params, choice)
            assert self.decode.tokens[seq_id] == lone, (seq_id, choice)


TestChoiceLives = ChoiceLives.TestCase
TestChoiceLives.settings = settings(
    max_examples=NUM_EXAMPLES, stateful_step_count=40, deadline=None, derandomize=True
)
