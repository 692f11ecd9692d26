"""Blocks handed over in shared memory, and what can be wrong with that memory."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from baton.handoff.ticket import LEASE_S
from baton.handoff.transports.shared_memory import SharedMemoryTransport
from baton.system.memory_file import create_memory_file, open_sealed
from baton.testing.virtual_clock import virtual
from baton.worker import instruments
from tests import needs
from tests.simulation.workers.fleet import Fleet, blocks_frames, fleet
from tests.simulation.workers.test_handoff_faults import drop, failure_of

pytestmark = needs.linux

PROMPT = list(range(100, 150))


def count(counter: Any, *labels: str) -> float:
    return float(counter.labels(*labels)._value.get())


def flip_in_the_pool_once(f: Fleet) -> None:
    """A byte of the prefill worker's pool differs for the moment in which a page is copied."""
    pool, spec = f.prefill.deps.dispatcher.pool, f.runner.kv_spec
    left = [1]

    def tamper(frame: Any) -> list[Any]:
        if frame.HasField("blocks") and left[0]:
            left[0] -= 1
            start, _ = spec.page_range(frame.blocks.pool_ref.block_ids[-1], frame.blocks.layer)
            pool[start + 5] ^= 4
            # The frame is handled before anything else of the loop runs.
            asyncio.get_running_loop().call_soon(pool.__setitem__, start + 5, pool[start + 5] ^ 4)
        return [frame]

    f.to_decode = tamper


@virtual
async def test_frames_name_blocks_and_carry_none(tmp_path: Path) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        sent = count(instruments.HANDOFF_BYTES, "sent", "shm")
        received = count(instruments.HANDOFF_BYTES, "received", "shm")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        frames = blocks_frames(f.frames)
        assert all(frame.HasField("pool_ref") for frame in frames)
        num_bytes = 4 * f.runner.kv_spec.row_bytes
        assert count(instruments.HANDOFF_BYTES, "sent", "shm") == sent + num_bytes
        assert count(instruments.HANDOFF_BYTES, "received", "shm") == received + num_bytes
        assert not list(tmp_path.iterdir()), "the socket of the hellos is gone"
        await f.settle(1)


@virtual
async def test_a_page_that_changes_while_it_is_copied_is_asked_for_again_by_grpc(
    tmp_path: Path,
) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        flip_in_the_pool_once(f)
        bad = count(instruments.HANDOFF_BAD_BLOCKS, "checksum")
        fallbacks = count(instruments.HANDOFF_FALLBACKS, "shm")

        answer = await (await f.gateway.submit(PROMPT, temperature=0.9, seed=5)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT, temperature=0.9, seed=5)
        assert count(instruments.HANDOFF_BAD_BLOCKS, "checksum") == bad + 1
        assert count(instruments.HANDOFF_FALLBACKS, "shm") == fallbacks + 1
        assert transports(f) == ["shm", "grpc"]
        await f.settle(1)


@virtual
async def test_a_plain_link_after_a_failure_is_followed_by_the_best_one_again(
    tmp_path: Path,
) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        flip_in_the_pool_once(f)
        await (await f.gateway.submit(PROMPT)).over()

        f.handoff_streams[-1].cancel()
        await asyncio.sleep(1)
        answer = await (await f.gateway.submit([7, *PROMPT])).over()

        assert answer.tokens[0] == f.lone_run([7, *PROMPT])
        assert transports(f) == ["shm", "grpc", "shm"]
        await f.settle(1)


@virtual
async def test_other_transfers_of_a_link_that_is_not_trusted_any_more_end_well(
    tmp_path: Path,
) -> None:
    sizes = {"num_blocks": 256}
    async with fleet(handoff_dir=tmp_path, decode_sizes=sizes, prefill_sizes=sizes) as f:
        flip_in_the_pool_once(f)
        prompts = [[i, *PROMPT] for i in range(6)]

        answers = [await f.gateway.submit(prompt) for prompt in prompts]

        for prompt, answer in zip(prompts, answers, strict=True):
            assert (await answer.over()).tokens[0] == f.lone_run(prompt)
        await asyncio.sleep(2)
        assert "transport failed" in [bye.reason for bye in f.kinds("bye")]
        assert transports(f) == ["shm", "grpc"]
        await f.settle(1)


def hand_over_instead(f: Fleet, fd: int) -> None:
    """The prefill worker hands over this file as its pool."""
    for transport in f.prefill.deps.transports._transports:
        if isinstance(transport, SharedMemoryTransport):
            object.__setattr__(transport._pool, "fd", fd)


@pytest.mark.parametrize("kind", ["unsealed", "empty"])
@virtual
async def test_a_file_that_could_shrink_or_holds_nothing_is_never_mapped(
    tmp_path: Path, kind: str
) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        file = create_memory_file("bad")
        os.truncate(file, f.runner.kv_spec.row_bytes if kind == "unsealed" else 0)
        given = open_sealed(file) if kind == "empty" else file
        assert given is not None
        hand_over_instead(f, given)
        fallbacks = count(instruments.HANDOFF_FALLBACKS, "shm")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert transports(f) == ["shm", "grpc"]
        assert count(instruments.HANDOFF_FALLBACKS, "shm") == fallbacks + 1
        await f.settle(1)
    os.close(file)


@virtual
async def test_blocks_beyond_a_truncated_file_are_counted_and_asked_for_by_grpc(
    tmp_path: Path,
) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        file = create_memory_file("short")
        os.truncate(file, f.runner.kv_spec.row_bytes)
        given = open_sealed(file)
        assert given is not None
        hand_over_instead(f, given)
        bad = count(instruments.HANDOFF_BAD_BLOCKS, "range")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert count(instruments.HANDOFF_BAD_BLOCKS, "range") == bad + 1
        await f.settle(1)
    os.close(file)
    os.close(given)


@virtual
async def test_frames_of_an_older_epoch_are_dropped_and_counted(tmp_path: Path) -> None:
    async with fleet(handoff_dir=tmp_path) as f:

        def with_older_copies(frame: Any) -> list[Any]:
            if not frame.HasField("blocks"):
                return [frame]
            old = type(frame)()
            old.CopyFrom(frame)
            old.blocks.epoch -= 1
            return [old, frame, old]

        f.to_decode = with_older_copies
        dropped = count(instruments.HANDOFF_DROPPED_FRAMES, "epoch")

        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert count(instruments.HANDOFF_DROPPED_FRAMES, "epoch") > dropped
        await f.settle(1)


@virtual
async def test_another_folder_means_grpc(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    async with fleet(
        decode_sizes={"handoff_dir": ours}, prefill_sizes={"handoff_dir": theirs}
    ) as f:
        answer = await (await f.gateway.submit(PROMPT)).over()

        assert answer.tokens[0] == f.lone_run(PROMPT)
        assert transports(f) == ["grpc"]
        await f.settle(1)


@virtual
async def test_a_peer_that_vanishes_leaves_nothing_held(tmp_path: Path) -> None:
    async with fleet(handoff_dir=tmp_path) as f:
        f.to_decode = drop("commit")
        answer = await f.gateway.submit(PROMPT)
        await answer.first_token()

        f.handoff_streams[-1].cancel()

        assert failure_of(await answer.over()) == "handoff_failed"
        assert asyncio.get_running_loop().time() < LEASE_S
        await f.settle(1)


def transports(f: Fleet) -> list[str]:
    """Of the links, in the order of their hellos."""
    return [hello.transport for hello in f.kinds("hello") if hasattr(hello, "transport")]
