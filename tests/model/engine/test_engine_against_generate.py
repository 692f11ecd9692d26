"""The oracle: the real engine on tiny models says what transformers' `generate` says."""

import random

from baton.engine.protocol.messages import AddSequence, Bind, Release, SamplingParams, Start

NUM_TOKENS = 20
MIN_DISTINCT = 10  # of 60 output tokens; equal tokens would prove little


def test_batched_chunked_and_cached_output_equals_generate(
    architecture, prompts, load_tiny, drive, greedy_sampling
):
    loaded, reference = load_tiny(architecture)
    driver = drive(loaded, max_step_tokens=16)
    _shuffle_blocks(driver, greedy_sampling)
    expected = [reference.generate(prompt, NUM_TOKENS) for prompt in prompts]
    assert len(set().union(*expected)) >= MIN_DISTINCT
    sampling = greedy_sampling(NUM_TOKENS)

    together = [driver.request(i, prompt, sampling) for i, prompt in enumerate(prompts)]
    batched = driver.run(together)
    alone = driver.run([driver.request(10, prompts[2], sampling)])
    extended = prompts[0] + expected[0][:12]
    cached = driver.run([driver.request(11, extended, greedy_sampling(NUM_TOKENS - 12))])

    assert max(events.num_step_seqs for events in batched) == 3
    for index, prompt in enumerate(prompts):
        reference.assert_same(prompt, expected[index], driver.tokens[index])
    assert _num_cached_tokens(alone) == 16
    reference.assert_same(prompts[2], expected[2], driver.tokens[10])
    assert _num_cached_tokens(cached) == 48
    reference.assert_same(extended, expected[0][12:], driver.tokens[11])


def test_output_goes_on_unchanged_after_the_blocks_moved(
    architecture, prompts, load_tiny, drive, greedy_sampling
):
    loaded, reference = load_tiny(architecture)
    prefill = drive(loaded, max_step_tokens=16)
    prefill.run([prefill.request(0, prompts[0], greedy_sampling(NUM_TOKENS), "prefill")])
    # One model serves both sides in turn: the second runner takes the module over.
    decode = drive(loaded, max_step_tokens=16)
    _shuffle_blocks(decode, greedy_sampling)

    _hand_over(
        prefill, decode, decode.request(0, prompts[0], greedy_sampling(NUM_TOKENS), "remote")
    )

    expected = reference.generate(prompts[0], NUM_TOKENS)
    reference.assert_same(prompts[0], expected, prefill.tokens[0] + decode.tokens[0])


def test_preempted_sequences_go_on_unchanged(prompts, load_tiny, drive, greedy_sampling):
    loaded, reference = load_tiny("qwen3")
    driver = drive(loaded, num_blocks=8, max_step_tokens=32)
    sampling = greedy_sampling(NUM_TOKENS)
    news = driver.run([driver.request(i, prompt, sampling) for i, prompt in enumerate(prompts)])
    assert sum(events.num_preemptions for events in news) > 0
    for index, prompt in enumerate(prompts):
        expected = reference.generate(prompt, NUM_TOKENS)
        reference.assert_same(prompt, expected, driver.tokens[index])


def test_seeded_samples_do_not_depend_on_batch_chunks_or_worker(prompts, load_tiny, drive):
    loaded, _ = load_tiny("mistral-window")
    sampling = SamplingParams(NUM_TOKENS, temperature=0.8, top_p=0.9, seed=77, ignore_eos=True)
    alone = drive(loaded, max_step_tokens=64)
    alone.run([alone.request(0, prompts[0], sampling)])

    batched = drive(loaded, max_step_tokens=16)
    batched.run([batched.request(i, prompt, sampling) for i, prompt in enumerate(prompts)])
    prefill = drive(loaded, max_step_tokens=16)
    prefill.run([prefill.request(0, prompts[0], sampling, "prefill")])
    decode = drive(loaded, max_step_tokens=16)
    _hand_over(prefill, decode, decode.request(0, prompts[0], sampling, "remote"))

    assert batched.tokens[0] == alone.tokens[0]
    assert prefill.tokens[0] + decode.tokens[0] == alone.tokens[0]
    assert batched.tokens[1] != batched.tokens[0]


def _hand_over(prefill, decode, request: AddSequence) -> None:
    """Move sequence 0's blocks from one pool to the other, and decode it to its end."""
    source_ids = prefill.events[0].started[0].rows
    decode.run([request])
    [bound] = [bound for events in decode.run([Bind(0)]) for bound in events.bound]
    for source, target in zip(source_ids, bound.rows, strict=False):
        decode.row(target)[:] = prefill.row(source)
    prefill.run([Release(0)])
    decode.run([Start(0, prefill.tokens[0][0])])


def _num_cached_tokens(news) -> int:
    [started] = [started for events in news for started in events.started]
    return started.num_cached_tokens


def _shuffle_blocks(driver, greedy_sampling) -> None:
    """Use and free blocks in an order that leaves no table ascending."""
    rng = random.Random(3)
    adds: list[AddSequence] = []
    for index in range(6):
        prompt = [rng.randrange(3, 500) for _ in range(rng.randrange(1, 60))]
        sampling = greedy_sampling(rng.randrange(1, 8))
        adds.append(driver.request(100 + index, prompt, sampling))
    driver.run(adds)
