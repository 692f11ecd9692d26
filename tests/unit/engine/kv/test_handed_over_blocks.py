"""A cache that is not the shared pool: what the engine says is copied is enough, and needed."""

import pytest

from baton.engine.protocol.messages import Bind, Release, Start
from baton.testing.device_runner import DeviceFakeRunner
from baton.testing.engine_driver import EngineDriver, add_sequence

BLOCK = 16


@pytest.fixture
def workers() -> tuple[EngineDriver, EngineDriver]:
    """A prefill and a decode worker; the decode worker has used its blocks before."""
    prefill, decode = (
        EngineDriver(
            DeviceFakeRunner(block_size=BLOCK), num_blocks=24, max_num_seqs=8, max_step_tokens=24
        )
        for _ in range(2)
    )
    decode.step(add_sequence(1, range(500, 600), max_tokens=3))
    decode.run()
    return prefill, decode


# One chunk; chunks of 24, 24 and 1 token; whole blocks.
@pytest.mark.parametrize("num_tokens", [10, 49, 64])
def test_a_prompt_goes_on_on_another_worker(
    workers: tuple[EngineDriver, EngineDriver], num_tokens: int
) -> None:
    prefill, decode = workers
    prompt = range(num_tokens)
    hand_over(prefill, decode, 2, prompt)
    assert decode.tokens[2] == decode.lone_run(prompt)


def test_cached_blocks_stay_as_they_are_and_only_the_others_come(
    workers: tuple[EngineDriver, EngineDriver],
) -> None:
    prefill, decode = workers
    decode.step(add_sequence(3, range(40)))  # its blocks are not in the shared pool
    decode.run()
    hand_over(prefill, decode, 2, range(60))
    assert decode.tokens[2] == decode.lone_run(range(60))


def test_a_second_prompt_hands_over_what_the_first_one_computed(
    workers: tuple[EngineDriver, EngineDriver],
) -> None:
    prefill, decode = workers
    hand_over(prefill, EngineDriver(DeviceFakeRunner(), num_blocks=24), 2, range(40))
    hand_over(prefill, decode, 4, range(60))
    assert decode.tokens[4] == decode.lone_run(range(60))


def hand_over(prefill: EngineDriver, decode: EngineDriver, seq_id: int, prompt: range) -> None:
    """Prefill here, move the blocks that are not cached there, decode there to the end."""
    admitted = decode.step(add_sequence(seq_id, prompt, kind="remote")).admitted[0]
    targets = decode.step(Bind(seq_id)).bound[0].rows
    num_cached = admitted.num_cached_blocks
    add = add_sequence(seq_id, prompt, kind="prefill", num_peer_blocks=num_cached)
    sources = prefill.step(add).started[0].rows
    prefill.run()
    assert len(sources) == -(-len(prompt) // BLOCK) - num_cached
    for source, target in zip(sources, targets, strict=True):
        decode.row(target)[:] = prefill.row(source)
    prefill.step(Release(seq_id))
    decode.tokens[seq_id] = prefill.tokens[seq_id]
    decode.step(Start(seq_id, prefill.tokens[seq_id][0]))
    decode.run()
