"""Drives one core process from a test, command by command, and keeps what came out."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.adapter_messages import Adapter, AdaptersServed, ServeAdapters
from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Bind,
    Command,
    Credit,
    EngineLoad,
    Fork,
    Probe,
    Release,
    Start,
    StepEvents,
    TokenLogprobs,
)
from baton.engine.protocol.vllm_stats import VllmStats
from baton.testing import engine_driver
from baton.wire.prefix_hash import split_hashes

LIMIT_S = 240.0


class DrivenCore:
    """A core and what it has told: by sequence, or in order."""

    def __init__(self, spec: EngineSpec, args: Sequence[str]) -> None:
        self._runner = asyncio.Runner()
        self._client: ProcessEngineClient = self._runner.run(
            ProcessEngineClient.start(spec, args, load_timeout_s=600)
        )
        self.info = self._client.info
        self.tokens: dict[int, list[int]] = {}
        self.first_index: dict[int, int] = {}
        self.finished: dict[int, str] = {}
        self.messages: dict[int, str] = {}
        self.refused: dict[int, Any] = {}
        self.admitted: dict[int, int] = {}
        self.started: dict[int, Any] = {}
        self.rows: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        self.freed: set[int] = set()
        self.num_preemptions = 0
        self.num_drafted = self.num_accepted = 0
        self.spent_us: Counter[int] = Counter()
        # The sequences that got a token in each step.
        self.shared_steps: list[set[int]] = []
        self.cached: set[bytes] = set()
        # Tokens and sequences of each step.
        self.step_sizes: list[tuple[int, int]] = []
        self.vllm: list[VllmStats] = []
        self.last: StepEvents | None = None
        self.adapters: AdaptersServed | None = None
        self._last_seq_id = 0
        self._open: set[int] = set()

    @property
    def client(self) -> ProcessEngineClient:
        return self._client

    @property
    def block_size(self) -> int:
        return self.info.kv_spec.block_size

    @property
    def progress(self) -> Any:
        return self._client.progress()

    @property
    def load(self) -> EngineLoad:
        assert self.last is not None
        return self.last.load

    @property
    def num_free_blocks(self) -> int:
        return self.load.num_blocks_free

    def settle(self) -> None:
        """End what a test has left, and read all that the core has to tell of it."""
        self.end(*self._open)
        self.snapshot()
        self.num_preemptions = 0

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def add(self, prompt: Sequence[int], **fields: Any) -> int:
        """A new sequence; its id."""
        self._last_seq_id += 1
        add: AddSequence = engine_driver.add_sequence(self._last_seq_id, prompt, **fields)
        self._open.add(self._last_seq_id)
        self.send(add)
        return self._last_seq_id

    def add_choices(self, prompt: Sequence[int], num_choices: int, **fields: Any) -> list[int]:
        """A new sequence, and further choices of its prompt; their ids."""
        first = self._last_seq_id + 1
        forks = tuple(Fork(first + choice, choice) for choice in range(1, num_choices))
        self._last_seq_id += num_choices
        self._open.update(range(first, first + num_choices))
        self.send(engine_driver.add_sequence(first, prompt, forks=forks, **fields))
        return list(range(first, first + num_choices))

    def add_together(self, *wanted: tuple[Sequence[int], dict[str, Any]]) -> list[int]:
        """New sequences, which the core hears of at once; their ids."""
        adds = []
        for prompt, fields in wanted:
            self._last_seq_id += 1
            adds.append(engine_driver.add_sequence(self._last_seq_id, prompt, **fields))
        seq_ids = [add.seq_id for add in adds]
        self._open.update(seq_ids)
        self.send(*adds)
        return seq_ids

    def send(self, *commands: Command) -> None:
        async def send() -> None:
            for command in commands:
                self._client.send(command)
            await asyncio.sleep(0)

        self._runner.run(send())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Read events until it is so."""
        self._runner.run(self._until(is_so))

    def answer(self, prompt: Sequence[int], **fields: Any) -> list[int]:
        """The whole output of one sequence."""
        seq_id = self.add(prompt, **fields)
        self.until(lambda: seq_id in self.finished)
        return self.tokens.get(seq_id, [])

    def end(self, *seq_ids: int) -> None:
        """Abort, and wait until all is free."""
        left = self._open.intersection(seq_ids)
        self.send(*map(Abort, left))
        self.until(lambda: self.freed.issuperset(left))
        self._open -= left

    def release(self, seq_id: int) -> None:
        self.send(Release(seq_id))
        self.until(lambda: seq_id in self.freed)
        self._open.discard(seq_id)

    def credit(self, seq_id: int, up_to_index: int) -> None:
        self.send(Credit(seq_id, up_to_index))

    def prefill(self, prompt: Sequence[int], **fields: Any) -> tuple[int, int]:
        """Prefill a prompt and hold it; its sequence and the first token."""
        seq_id = self.add(prompt, kind="prefill", **fields)
        self.until(lambda: bool(self.tokens.get(seq_id)))
        return seq_id, self.tokens[seq_id][0]

    def bind(self, seq_id: int) -> list[int]:
        """Bind an admitted sequence; the rows of its missing blocks."""
        self.until(lambda: seq_id in self.admitted)
        self.send(Bind(seq_id))
        self.until(lambda: seq_id in self.rows)
        return self.rows[seq_id]

    def hand_over(
        self, source: int, target: int, first_token: int, *fork_tokens: tuple[int, int]
    ) -> None:
        """Copy the blocks of a held prefill into those of a bound sequence, and start it."""
        self.copy_blocks(self, source, target)
        self.send(Start(target, first_token, fork_tokens))

    def copy_blocks(self, other: "DrivenCore", source: int, target: int) -> None:
        """Copy the missing blocks of a bound sequence from a prefill that another core holds."""
        row = self.info.kv_spec.row_bytes
        ours, theirs = self._client.pool, other._client.pool
        sources = other.rows[source][self.admitted[target] :]
        for there, here in zip(sources, self.rows[target], strict=True):
            ours[here * row : (here + 1) * row] = bytes(theirs[there * row : (there + 1) * row])

    def snapshot(self) -> set[bytes]:
        """All hashes in the prefix cache, as the core tells them."""
        self.send(SnapshotHashes())
        found: list[bytes] = []

        def has_come() -> bool:
            if self.last is not None and self.last.snapshot is not None:
                found.extend(split_hashes(self.last.snapshot))
                return True
            return False

        self.last = None
        self.until(has_come)
        return set(found)

    def serve(self, *adapters: Adapter) -> AdaptersServed:
        """Let the core serve these adapters and no others; its answer."""
        self.adapters = None
        self.send(ServeAdapters(list(adapters)))
        self.until(lambda: self.adapters is not None)
        assert self.adapters is not None
        return self.adapters

    def probe(self) -> None:
        """Let the idle core run an empty step."""
        step = self.progress.step
        self.send(Probe())
        self.snapshot()
        assert self.progress.step > step

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self._take(await self._client.events())

    def _take(self, events: StepEvents) -> None:
        self.last = events
        if events.num_step_seqs:
            self.step_sizes.append((events.num_step_tokens, events.num_step_seqs))
        if events.vllm is not None:
            self.vllm.append(events.vllm)
        self.adapters = events.adapters or self.adapters
        for admitted in events.admitted:
            self.admitted[admitted.seq_id] = admitted.num_cached_blocks
        for refused in events.refused:
            self.refused[refused.seq_id] = refused
        for started in events.started:
            self.started[started.seq_id] = started
            self.rows[started.seq_id] = list(started.rows)
        for bound in events.bound:
            self.rows[bound.seq_id] = bound.rows
        for progress in events.progress:
            self.computed[progress.seq_id] = progress.num_computed_tokens
        for entry in events.prompt_logprobs:
            self.prompt_logprobs.setdefault(entry.seq_id, []).append(entry)
        for entry in events.logprobs:
            self.logprobs.setdefault(entry.seq_id, []).append(entry)
        columns = zip(events.token_seq_ids, events.token_ids, events.token_indexes, strict=True)
        for seq_id, token, index in columns:
            output = self.tokens.setdefault(seq_id, [])
            first = self.first_index.setdefault(seq_id, index)
            assert index == first + len(output), f"token {index} of {seq_id} is not the next"
            output.append(token)
        if events.token_seq_ids:
            self.shared_steps.append(set(events.token_seq_ids))
        for finished in events.finished:
            assert finished.seq_id not in self.finished, "finished twice"
            self.finished[finished.seq_id] = finished.reason
            self.messages[finished.seq_id] = finished.message
        self.freed.update(events.freed)
        self.num_preemptions += events.num_preemptions
        self.num_drafted += events.num_draft_tokens
        self.num_accepted += events.num_accepted_tokens
        for seq_id, spent_us in zip(events.spent_seq_ids, events.spent_us, strict=True):
            self.spent_us[seq_id] += spent_us
        self.cached -= set(split_hashes(events.removed_hashes))
        for stored in events.stored:
            self.cached |= set(split_hashes(stored.hashes))
        assert not events.violations
