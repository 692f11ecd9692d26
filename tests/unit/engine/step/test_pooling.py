"""Sequences whose answer is a vector: in chunks, beside a cache, and where no vectors are given."""

import numpy as np
import pytest

from baton.testing.engine_driver import EngineDriver, add_sequence
from baton.testing.fake_runner import FakeRunner
from baton.wire.pooling import Pooling

PROMPT = list(range(100, 150))


def drive(kind=None, **sizes):
    pooling = None if kind is None else Pooling(kind, 4)
    return EngineDriver(FakeRunner(pooling=pooling), num_blocks=16, max_num_seqs=8, **sizes)


def pooled(driver, *requests):
    """The vectors of these sequences, by id, and how many tokens of each were cached."""
    vectors, cached = {}, []
    driver.step(*requests)
    while True:
        for each in driver.events.pooled:
            vectors[each.seq_id] = np.frombuffer(each.vector, "<f4").tolist()
        cached += [each.num_cached_tokens for each in driver.events.started]
        if not driver.engine.has_work:
            return vectors, cached
        driver.step()


@pytest.mark.parametrize(
    ("kind", "vector", "num_cached"),
    [("last", [149, 49, 1, 1], 48), ("mean", [124.5, 24.5, 1, 1], 0)],
)
def test_a_vector_is_of_the_whole_prompt_in_chunks_and_beside_a_cache(kind, vector, num_cached):
    driver = drive(kind, max_step_tokens=16)
    first = pooled(driver, add_sequence(1, PROMPT, pools=True, max_tokens=1))
    again = pooled(driver, add_sequence(2, PROMPT, pools=True, max_tokens=1))
    assert first == ({1: vector}, [0])
    assert again == ({2: vector}, [num_cached])
    assert driver.finished == {1: "stop", 2: "stop"}
    assert not driver.tokens


def test_sequences_of_one_step_keep_their_vectors_apart():
    driver = drive("mean")
    adds = [add_sequence(n, [n, n], pools=True, max_tokens=1) for n in range(1, 5)]
    vectors, _ = pooled(driver, *adds)
    assert vectors == {n: [n, 0.5, 1, 1] for n in range(1, 5)}


def test_a_vector_is_scaled_to_length_1_where_the_model_says_so():
    runner = FakeRunner(pooling=Pooling("last", 3, normalizes=True))
    driver = EngineDriver(runner, num_blocks=16, max_num_seqs=8)
    vectors, _ = pooled(driver, add_sequence(1, [2], pools=True, max_tokens=1))
    np.testing.assert_allclose(vectors[1], np.array([2, 0, 1]) / 5**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "pools", "reason"),
    [(None, True, "not_an_embedding_model"), ("last", False, "not_a_text_model")],
)
def test_what_the_model_cannot_give_is_refused_by_name(kind, pools, reason):
    driver = drive(kind)
    driver.step(add_sequence(1, PROMPT, pools=pools))
    [refused] = driver.events.refused
    assert refused.reason == reason


def test_a_vector_of_a_prefill_that_is_handed_over_is_refused():
    driver = drive("last")
    driver.step(add_sequence(1, PROMPT, kind="remote", pools=True))
    assert [each.reason for each in driver.events.refused] == ["invalid_value"]
