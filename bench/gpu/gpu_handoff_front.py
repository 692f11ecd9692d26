"""Plays the front of one core that hands KV over, or takes it: the commands of a handoff, timed.

Knows nothing of gRPC: the caller passes on what two fronts must know of each other's transfers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from baton.engine.process.process_client import ProcessEngineClient
from baton.engine.protocol.device_messages import OpenPeer, ReadPages
from baton.engine.protocol.messages import (
    AddSequence,
    Bind,
    Release,
    SamplingParams,
    SequenceKind,
    Start,
    StepEvents,
)
from baton.handoff.block_bytes import MAX_DATA_BYTES

_LINK_ID = 1
_WAIT_S = 120.0
_CACHE_KEY = bytes(32)


class WrongHandoff(Exception):
    """A core has refused or failed what it was asked for."""


@dataclass(slots=True)
class Prefilled:
    """A prompt's KV in one core; its blocks are held there until they are released."""

    seq_id: int
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    # Of the shared pool, or blocks on the device.
    rows: list[int] = field(default_factory=list)
    # One checksum per layer, by the block's place in the prompt.
    checksums: dict[int, list[int]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0


class CoreFront:
    """One command after the other: only one of its calls may be under way."""

    def __init__(self, client: ProcessEngineClient) -> None:
        self.client = client
        self.spec = client.info.kv_spec
        self._last_id = 0

    async def prefill(self, prompt: Sequence[int], *, checksum_every: int | None = 1) -> Prefilled:
        """From the command to the first token. `checksum_every` None: into the shared pool."""
        done = Prefilled(self._next_id())
        began = time.perf_counter()
        self._add(done.seq_id, prompt, "prefill", checksum_every)

        def is_done(events: StepEvents) -> bool:
            for started in events.started:
                done.rows = started.rows
                done.num_cached_tokens = started.num_cached_tokens
            for progress in events.progress:
                done.num_computed_tokens = progress.num_computed_tokens
                done.checksums.update((each.index, each.sums) for each in progress.checksums)
            done.tokens += events.token_ids
            return done.num_computed_tokens == len(prompt) and bool(done.tokens)

        await self._until(is_done)
        done.seconds = time.perf_counter() - began
        return done

    def release(self, prefilled: Prefilled) -> None:
        """Its blocks are free, into the prefix cache."""
        self.client.send(Release(prefilled.seq_id))

    def open(self, peer: "CoreFront") -> None:
        """All reads are of this peer's blocks."""
        pool = peer.client.info.device_pool
        assert pool is not None, "the core was started with the name of an agent"
        self.client.send(OpenPeer(_LINK_ID, pool))

    async def bind(self, prompt: Sequence[int]) -> tuple[int, list[int]]:
        """A sequence whose KV comes from afar, and its blocks on the device."""
        seq_id = self._next_id()
        self._add(seq_id, prompt, "remote")
        await self._until(lambda events: bool(events.admitted))
        self.client.send(Bind(seq_id, is_on_device=True))
        block_ids: list[int] = []

        def is_bound(events: StepEvents) -> bool:
            block_ids.extend(block for each in events.bound for block in each.rows)
            return bool(events.bound)

        await self._until(is_bound)
        return seq_id, block_ids

    async def read(self, source: Prefilled, block_ids: Sequence[int]) -> float:
        """Seconds until all pages of the peer's prompt were here and right. Raises WrongHandoff."""
        began = time.perf_counter()
        commands = self._reads(source, block_ids)
        for command in commands:
            self.client.send(command)
        missing = {command.read_id for command in commands}

        def is_done(events: StepEvents) -> bool:
            for each in events.pages_read:
                if each.cause is not None:
                    raise WrongHandoff(f"{each.cause}: {each.message}")
                missing.discard(each.read_id)
            return not missing

        await self._until(is_done)
        return time.perf_counter() - began

    async def start(self, seq_id: int, first_token: int) -> None:
        """The blocks of this sequence are all here; its first token is its last one."""
        self.client.send(Start(seq_id, first_token, is_on_device=True))
        await self._until(lambda events: any(each.seq_id == seq_id for each in events.finished))

    def shared_row(self, row: int) -> memoryview:
        """A block as the front sees it."""
        size = self.spec.row_bytes
        return self.client.pool[row * size : (row + 1) * size]

    def _reads(self, source: Prefilled, block_ids: Sequence[int]) -> list[ReadPages]:
        """As a decode worker asks for the frames of one transfer, layer by layer."""
        transfer_id = self._next_id()
        commands: list[ReadPages] = []
        for index, layer in enumerate(self.spec.layers):
            size = MAX_DATA_BYTES // layer.page_bytes(self.spec.block_size)
            for start in range(0, len(source.checksums), size):
                places = range(start, min(start + size, len(source.checksums)))
                sums = [(at, source.checksums[place][index]) for at, place in enumerate(places)]
                theirs = source.rows[places.start : places.stop]
                ours = list(block_ids[places.start : places.stop])
                read_id = self._next_id()
                commands.append(
                    ReadPages(read_id, transfer_id, _LINK_ID, index, theirs, ours, sums)
                )
        return commands

    def _add(
        self,
        seq_id: int,
        prompt: Sequence[int],
        kind: SequenceKind,
        checksum_every: int | None = None,
    ) -> None:
        command = AddSequence(
            seq_id=seq_id,
            request_id=f"bench-{seq_id}",
            choice=0,
            kind=kind,
            token_ids=np.array(prompt, "<u4").tobytes(),
            num_emitted=0,
            block_hashes=b"",
            cache_key=_CACHE_KEY,
            sampling=SamplingParams(1, ignore_eos=True),
            credit=1,
            checksum_every=checksum_every,
        )
        self.client.send(command)

    async def _until(self, is_done: Callable[[StepEvents], bool]) -> None:
        async with asyncio.timeout(_WAIT_S):
            while True:
                events = await self.client.events()
                if events.refused:
                    raise WrongHandoff(events.refused[0].message)
                if is_done(events):
                    return

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
