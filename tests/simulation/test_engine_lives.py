"""Random lives of sequences on a prefill and a decode engine with tiny pools.

After each step: no block lost, KV events add up, no KV chain broken (FakeRunner). At the end:
every sequence that finished has the tokens of a lone run, and every block is free.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.engine.protocol.messages import Abort, AddSequence, Bind, Command, Credit, Release, Start
from baton.testing.device_runner import AheadFakeRunner, DeviceFakeRunner
from baton.testing.engine_driver import PLENTY_OF_CREDIT, EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner

BLOCK = 4
NUM_BLOCKS = {"prefill": 16, "decode": 20}
# Of a staging ring: as many as the longest prompt has blocks.
NUM_ROWS = 10
RUNNERS = (FakeRunner, DeviceFakeRunner, AheadFakeRunner)


def make_driver(
    pool: str, max_step_tokens: int, make_runner: type[FakeRunner] = FakeRunner
) -> EngineDriver:
    runner = make_runner(
        block_size=BLOCK, max_model_len=56, vocab_size=50, mean_output_tokens=12, num_layers=2
    )
    sizes = {"max_num_seqs": 4, "max_step_tokens": max_step_tokens, "max_waiting": 6}
    return EngineDriver(runner, num_blocks=NUM_BLOCKS[pool], num_rows=NUM_ROWS, **sizes)


class Handoff:
    """Where the front stands with one remote sequence."""

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.sources: list[int] = []
        self.targets: list[int] | None = None
        self.is_computed = False


class EngineLives(RuleBasedStateMachine):
    @initialize(
        prefill_budget=st.integers(4, 20),
        decode_budget=st.integers(4, 20),
        prefill_runner=st.sampled_from(RUNNERS),
        decode_runner=st.sampled_from(RUNNERS),
    )
    def build(
        self,
        prefill_budget: int,
        decode_budget: int,
        prefill_runner: type[FakeRunner],
        decode_runner: type[FakeRunner],
    ) -> None:
        self.prefill = make_driver("prefill", prefill_budget, prefill_runner)
        self.decode = make_driver("decode", decode_budget, decode_runner)
        self.requests: dict[int, AddSequence] = {}
        self.handoffs: dict[int, Handoff] = {}
        self.live: set[int] = set()
        self.on_prefill: set[int] = set()
        self.ended_early: set[int] = set()

    @rule(
        kind=st.sampled_from(["local", "local on prefill", "remote"]),
        prompt=st.tuples(st.integers(0, 2), st.integers(1, 40)),
        limits=st.tuples(st.integers(1, 30), st.sampled_from([0, 1, 5, PLENTY_OF_CREDIT])),
        priority=st.integers(0, 2),
        seed=st.integers(0, 1),
        wants_logprobs=st.booleans(),
    )
    def add(
        self,
        kind: str,
        prompt: tuple[int, int],
        limits: tuple[int, int],
        priority: int,
        seed: int,
        wants_logprobs: bool,
    ) -> None:
        seq_id, (stem, length) = len(self.requests), prompt
        request = add_sequence(
            seq_id,
            [(stem * 7 + i * (stem + 1)) % 49 for i in range(length)],
            kind="remote" if kind == "remote" else "local",
            max_tokens=limits[0],
            credit=limits[1],
            priority=priority,
            seed=seed,
            num_prompt_logprobs=0 if wants_logprobs and kind != "remote" else None,
            num_logprobs=0 if wants_logprobs else None,
        )
        self.requests[seq_id] = request
        self.live.add(seq_id)
        if kind == "local on prefill":
            self.on_prefill.add(seq_id)
        self.step(seq_id, request)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def abort(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.live)))
        self.live.remove(seq_id)
        self.ended_early.add(seq_id)
        self.step(seq_id, Abort(seq_id))
        if self.handoffs.pop(seq_id, None) is not None:
            self.step_prefill(Release(seq_id))

    @rule(data=st.data(), more=st.integers(1, 20))
    @precondition(lambda self: self.live)
    def give_credit(self, data: st.DataObject, more: int) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.live)))
        num_emitted = len(self.driver_of(seq_id).tokens.get(seq_id, []))
        self.step(seq_id, Credit(seq_id, num_emitted + more))

    @rule(num_steps=st.integers(1, 5))
    def run_decode(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step_decode()

    @rule(num_steps=st.integers(1, 5))
    def run_prefill(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step_prefill()

    @rule(data=st.data())
    @precondition(
        lambda self: any(h.is_computed and h.targets is not None for h in self.handoffs.values())
    )
    def complete_handoff(self, data: st.DataObject) -> None:
        ready = [
            h.seq_id for h in self.handoffs.values() if h.is_computed and h.targets is not None
        ]
        self.complete(self.handoffs[data.draw(st.sampled_from(ready))])

    @invariant()
    def nothing_is_held_for_sequences_that_ended(self) -> None:
        if not self.live and not self.handoffs:
            self.all_is_free()

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        for seq_id in sorted(self.live):
            self.step(seq_id, Credit(seq_id, PLENTY_OF_CREDIT))
        for _ in range(2000):
            if not self.live:
                break
            self.step_prefill()
            self.step_decode()
            for handoff in list(self.handoffs.values()):
                if handoff.is_computed and handoff.targets is not None:
                    self.complete(handoff)
        assert not self.live, "sequences starve"
        self.all_is_free()
        for seq_id in self.requests.keys() - self.ended_early:
            self.has_the_tokens_of_a_lone_run(seq_id)

    def driver_of(self, seq_id: int) -> EngineDriver:
        return self.prefill if seq_id in self.on_prefill else self.decode

    def step(self, seq_id: int, command: Command) -> None:
        if seq_id in self.on_prefill:
            self.step_prefill(command)
        else:
            self.step_decode(command)

    def step_decode(self, *commands: Command) -> None:
        events = self.decode.step(*commands)
        for refused in events.refused:
            self.live.remove(refused.seq_id)
            self.ended_early.add(refused.seq_id)
        for admitted in events.admitted:
            self.handoffs[admitted.seq_id] = Handoff(admitted.seq_id)
            self.start_prefill(admitted.seq_id, admitted.num_cached_blocks)
        for bound in events.bound:
            self.handoffs[bound.seq_id].targets = bound.rows
        for finished in events.finished:
            self.live.discard(finished.seq_id)

    def start_prefill(self, seq_id: int, num_peer_blocks: int) -> None:
        request = self.requests[seq_id]
        prompt = list(memoryview(request.token_ids).cast("I"))
        sampling = request.sampling
        self.step_prefill(
            add_sequence(
                seq_id,
                prompt,
                kind="prefill",
                max_tokens=sampling.max_tokens,
                seed=sampling.seed,
                num_peer_blocks=num_peer_blocks,
            )
        )

    def step_prefill(self, *commands: Command) -> None:
        events = self.prefill.step(*commands)
        for refused in events.refused:
            self.live.remove(refused.seq_id)
            self.ended_early.add(refused.seq_id)
            if self.handoffs.pop(refused.seq_id, None) is not None:
                self.step_decode(Abort(refused.seq_id))
        for started in events.started:
            if started.seq_id in self.handoffs:
                self.handoffs[started.seq_id].sources = started.rows
                self.step_decode(Bind(started.seq_id))
        for seq_id in self.handoffs.keys() & set(events.token_seq_ids):
            self.handoffs[seq_id].is_computed = True
        for finished in events.finished:
            if finished.seq_id in self.on_prefill:
                self.live.discard(finished.seq_id)

    def complete(self, handoff: Handoff) -> None:
        """Copy the missing blocks and let the sequence decode."""
        seq_id = handoff.seq_id
        assert handoff.targets is not None
        for source, target in zip(handoff.sources, handoff.targets, strict=True):
            self.decode.row(target)[:] = self.prefill.row(source)
        del self.handoffs[seq_id]
        self.step_prefill(Release(seq_id))
        self.decode.tokens[seq_id] = self.prefill.tokens[seq_id].copy()
        self.step_decode(Start(seq_id, self.decode.tokens[seq_id][0]))

    def all_is_free(self) -> None:
        for driver in (self.prefill, self.decode):
            load = driver.engine.measure_load()
            assert load.num_blocks_free == driver.engine.info.num_blocks
            assert (load.num_blocks_promised, load.num_running, load.num_waiting) == (0, 0, 0)
            assert load.num_rows_free == driver.engine.info.num_rows

    def has_the_tokens_of_a_lone_run(self, seq_id: int) -> None:
        request = self.requests[seq_id]
        prompt = memoryview(request.token_ids).cast("I")
        output = self.driver_of(seq_id).tokens[seq_id]
        assert output == self.decode.runner.lone_run(prompt, request.sampling)
        if request.sampling.num_prompt_logprobs is not None:
            num_prompt_logprobs = self.driver_of(seq_id).num_prompt_logprobs.get(seq_id, 0)
            assert num_prompt_logprobs == len(prompt) - 1


TestEngineLives = EngineLives.TestCase
TestEngineLives.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, derandomize=True
)
