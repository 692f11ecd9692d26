"""Plays the front of one Engine with a FakeRunner, step by step, and keeps what came out.

Checks after each step that no block is lost and that the KV events add up to what is cached.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from baton.engine.protocol.cache_messages import SnapshotHashes
from baton.engine.protocol.device_handoff import DeviceHandoff
from baton.engine.protocol.messages import (
    AddSequence,
    Command,
    SamplingParams,
    SequenceKind,
    StepEvents,
)
from baton.engine.step.engine import Engine, EngineConfig
from baton.engine.step.grammars import Grammars
from baton.testing.fake_runner import FakeRunner
from baton.testing.virtual_clock import VirtualClock
from baton.wire.prefix_hash import split_hashes

CACHE_KEY = b"k" * 32
PLENTY_OF_CREDIT = 1_000_000


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as they travel: u32 little-endian."""
    return np.array(token_ids, "<u4").tobytes()


class EngineDriver:
    """`events` are of the last step; the dictionaries of all of them, by seq_id."""

    def __init__(
        self,
        runner: FakeRunner,
        grammars: Grammars | None = None,
        device: DeviceHandoff | None = None,
        **sizes: Any,
    ) -> None:
        self.runner = runner
        self.clock = VirtualClock()
        sizes.setdefault("num_rows", sizes["num_blocks"])  # of a ring, if the runner has one
        self.config = EngineConfig("fake-model", "fake", "1", **sizes)
        self.engine = Engine(self.config, runner, self.clock, grammars, device)
        self.pool = bytearray(self.engine.num_pool_rows * runner.kv_spec.row_bytes)
        self.engine.bind_pool(memoryview(self.pool))
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, str] = {}
        self.num_prompt_logprobs: dict[int, int] = {}
        self.events = self._no_events()
        self._cached: set[bytes] = set()

    @property
    def num_free_blocks(self) -> int:
        return self.events.load.num_blocks_free

    def step(self, *commands: Command) -> StepEvents:
        """One step; its tokens must continue the indexes of each sequence."""
        self.events = self.engine.step([*commands, SnapshotHashes()]) or self._no_events()
        events = self.events
        columns = zip(events.token_seq_ids, events.token_ids, events.token_indexes, strict=True)
        self._check_prompt_logprobs()
        for seq_id, token, index in columns:
            output = self.tokens.setdefault(seq_id, [])
            assert index == len(output), f"token {index} of {seq_id} after {len(output)}"
            output.append(token)
        for finished in events.finished:
            assert finished.seq_id not in self.finished, "finished twice"
            self.finished[finished.seq_id] = finished.reason
        self.engine.check_integrity()
        self._check_kv_events()
        return events

    def run(self, max_steps: int = 1000) -> None:
        """Step until the engine has nothing to do."""
        for _ in range(max_steps):
            self.step()
            if not self.engine.has_work:
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def lone_run(self, prompt: Sequence[int], max_tokens: int = 8) -> list[int]:
        """The output that this prompt must get, whatever else runs."""
        return self.runner.lone_run(prompt, SamplingParams(max_tokens))

    def row(self, row: int) -> memoryview:
        """One row's bytes, writable."""
        size = self.runner.kv_spec.row_bytes
        return memoryview(self.pool)[row * size : (row + 1) * size]

    def _no_events(self) -> StepEvents:
        return StepEvents(self.engine.step_index, self.engine.measure_load())

    def _check_prompt_logprobs(self) -> None:
        """Logprobs of prompt tokens come in order, each once, before there is an output."""
        for one in self.events.prompt_logprobs:
            index = self.num_prompt_logprobs.get(one.seq_id, 0) + 1
            self.num_prompt_logprobs[one.seq_id] = index
            assert one.index == index, f"prompt token {one.index} of {one.seq_id} after {index - 1}"
            assert one.seq_id not in self.tokens

    def _check_kv_events(self) -> None:
        assert self.events.snapshot is not None
        self._cached -= set(split_hashes(self.events.removed_hashes))
        for stored in self.events.stored:
            self._cached |= set(split_hashes(stored.hashes))
        assert self._cached == set(split_hashes(self.events.snapshot))


def add_sequence(
    seq_id: int,
    prompt: Sequence[int],
    *,
    kind: SequenceKind = "local",
    max_tokens: int = 8,
    credit: int = PLENTY_OF_CREDIT,
    emitted: Sequence[int] = (),
    **fields: object,
) -> AddSequence:
    """An AddSequence with sensible defaults; `fields` are further fields of it or of sampling."""
    sampling_names = SamplingParams.__struct_fields__
    sampling = {name: fields.pop(name) for name in sampling_names if name in fields}
    defaults: dict[str, object] = {"choice": 0, "block_hashes": b"", "cache_key": CACHE_KEY}
    return AddSequence(
        seq_id=seq_id,
        request_id=f"request-{seq_id}",
        kind=kind,
        token_ids=encode_tokens([*prompt, *emitted]),
        num_emitted=len(emitted),
        sampling=SamplingParams(max_tokens, **sampling),  # type: ignore[arg-type]
        credit=credit,
        **(defaults | fields),  # type: ignore[arg-type]
    )
