"""GpuRunner says what the model says by itself: on a GPU, else as the same program on the CPU."""

import numpy as np
import pytest
import torch

from tests import needs

pytest.importorskip("triton", reason=needs.TRITON)

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import Bind, SamplingParams, Start
from baton.engine.protocol.runner import StagingRunner
from baton.model.gpu.gpu_forward import DeviceModules
from baton.model.gpu.gpu_runner import GpuRunner
from baton.model.gpu.step_inputs import StepLimits
from baton.model.gpu.triton.dense_forward import TritonDense
from baton.model.load.load import LoadOptions, load_model
from baton.model.load.self_check import check_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter takes milliseconds for each program of a kernel, even for one without work.
LIMITS = StepLimits(64, max_seqs=6, max_blocks_per_seq=12, more_segments=2, segment_unit=16)
NUM_BLOCKS = 24
SMALL = {"num_hidden_layers": 1}


@pytest.fixture
def load(model_folder):
    """A model of its own for each test: the runner takes it over."""

    def load(name, **changes):
        options = LoadOptions(dtype="float32", device=DEVICE)
        loaded = load_model(str(model_folder(name, **changes)), options)
        return loaded, GpuRunner(loaded, LIMITS, DEVICE)

    return load


# Sinks and windows; softcap; K dim != V dim; 7 query heads to a KV head are in the kernel's tests.
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt-oss", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("gemma2", {}),
        ("deepseek-v3", {}),
    ],
)
def test_a_model_gives_its_own_logits_through_the_paged_kernels(name, changes, load):
    loaded, runner = load(name, num_hidden_layers=2, **changes)
    assert isinstance(runner._steps.forward, DeviceModules)
    check_model(loaded, runner)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-rope3", {"attention_bias": True} | SMALL),
        ("qwen2-yarn", SMALL),
        ("qwen3", {"num_hidden_layers": 2}),
        ("mistral-window", {"tie_word_embeddings": True} | SMALL),
    ],
)
def test_a_dense_model_gives_its_own_logits_without_its_modules(name, changes, load):
    loaded, runner = load(name, **changes)
    assert isinstance(runner._steps.forward, TritonDense)
    check_model(loaded, runner)


def test_greedy_output_of_a_batch_equals_generate(load, load_tiny, drive, prompts, greedy_sampling):
    _, reference = load_tiny("qwen3", **SMALL)
    loaded, runner = load("qwen3", **SMALL)
    driver = drive(loaded, max_step_tokens=32, runner=runner)
    # One prompt needs two chunks, the second of them together with a decode of the other.
    driver.run([driver.request(i, p, greedy_sampling(3)) for i, p in enumerate(prompts[:2])])
    for index, prompt in enumerate(prompts[:2]):
        reference.assert_same(prompt, reference.generate(prompt, 3), driver.tokens[index])


def test_sampled_output_is_the_same_as_on_the_cpu(load, load_tiny, drive, prompts):
    sampling = [
        SamplingParams(max_tokens=2, temperature=0.9, seed=5, ignore_eos=True),
        SamplingParams(max_tokens=2, temperature=1.1, top_p=0.8, seed=6, ignore_eos=True),
        SamplingParams(max_tokens=2, presence_penalty=1.0, num_logprobs=2, ignore_eos=True),
    ]
    ours, runner = load("qwen3", **SMALL)
    drivers = [
        drive(ours, max_step_tokens=32, runner=runner),
        drive(load_tiny("qwen3", **SMALL)[0], max_step_tokens=32),
    ]
    for driver in drivers:
        requests = zip(prompts, sampling, strict=True)
        driver.run([driver.request(i, p[:7], params) for i, (p, params) in enumerate(requests)])
    assert drivers[0].tokens == drivers[1].tokens


def test_steps_launched_ahead_bring_the_tokens_of_steps_one_by_one(
    load, load_tiny, drive, prompts, monkeypatch
):
    sampling = [
        SamplingParams(max_tokens=5, ignore_eos=True),
        SamplingParams(max_tokens=3, temperature=0.9, seed=5, ignore_eos=True),
        SamplingParams(max_tokens=4, temperature=1.1, top_p=0.8, seed=6, ignore_eos=True),
    ]
    loaded, runner = load("qwen3", **SMALL)
    launch, num_awaited = runner.launch, []

    def count(batch):
        awaited = () if batch.tokens_from is None else np.flatnonzero(batch.tokens_from >= 0)
        num_awaited.append(len(awaited))
        return launch(batch)

    monkeypatch.setattr(runner, "launch", count)
    drivers = [
        drive(loaded, max_step_tokens=32, runner=runner),
        drive(load_tiny("qwen3", **SMALL)[0], max_step_tokens=32),
    ]
    for driver in drivers:
        requests = zip(prompts, sampling, strict=True)
        driver.run([driver.request(i, p[:7], params) for i, (p, params) in enumerate(requests)])
    assert drivers[0].tokens == drivers[1].tokens
    # The first decode begins from the prompt's token, which is known.
    assert num_awaited == [0, 3, 2, 1]


def test_a_decode_step_runs_at_the_next_size_and_rows_come_in_their_order(load):
    loaded, runner = load("llama", **SMALL)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    sizes = []
    forward = runner._steps._decodes._forward
    runner._steps._decodes._forward = lambda size: (sizes.append(size), forward(size))
    all_rows = runner.run(decode_batch([0, 1, 2])).tokens.tolist()
    some_rows = runner.run(decode_batch([2, 0])).tokens.tolist()
    assert some_rows == [all_rows[2], all_rows[0]]
    assert sizes == [4, 4]


def test_a_step_with_a_chunk_is_padded_to_a_size_once_steps_are_captured(load):
    loaded, runner = load("qwen3", **SMALL)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    batch = mixed_batch()
    plain = runner.logits(batch).clone()
    before = runner.pool.rows.clone()
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    runner.capture_graphs()
    sizes = []
    forward = runner._steps._others.run
    runner._steps._others.run = lambda size: (sizes.append(size), forward(size))
    torch.testing.assert_close(runner.logits(batch), plain, atol=1e-5, rtol=0)
    assert sizes == [16]
    torch.testing.assert_close(runner.pool.rows.view(torch.float32), before.view(torch.float32))
    batch.sample_rows = batch.sample_rows * 4  # more than the outputs have room for
    runner.logits(batch)
    assert sizes == [16]


def test_output_goes_on_on_another_worker_after_the_blocks_moved(
    load, load_tiny, drive, prompts, greedy_sampling
):
    _, reference = load_tiny("qwen3", **SMALL)
    prompt, sampling = prompts[2], greedy_sampling(4)
    prefill, decode = (
        drive(loaded, max_step_tokens=16, runner=runner)
        for loaded, runner in (load("qwen3", **SMALL), load("qwen3", **SMALL))
    )
    prefill.run([prefill.request(0, prompt, sampling, "prefill")])
    decode.run([decode.request(9, prompts[1], sampling)])  # uses the blocks before
    decode.run([decode.request(0, prompt, sampling, "remote")])
    [bound] = [bound for events in decode.run([Bind(0)]) for bound in events.bound]
    source_ids = prefill.events[0].started[0].rows
    for source, target in zip(source_ids, bound.rows, strict=False):
        decode.row(target)[:] = prefill.row(source)
    decode.run([Start(0, prefill.tokens[0][0])])
    expected = reference.generate(prompt, 4)
    reference.assert_same(prompt, expected, prefill.tokens[0] + decode.tokens[0])


def test_the_largest_step_runs_within_the_limits_and_a_few_blocks(load):
    loaded, runner = load("llama", **SMALL)
    assert isinstance(runner, StagingRunner), "the engine asks before there is a pool"
    runner.bind_pool(memoryview(bytearray(2 * loaded.kv_spec.row_bytes)))
    runner.run_largest_step()


def test_copied_blocks_are_copied_before_the_step(load):
    loaded, runner = load("llama", **SMALL)
    runner.bind_pool(memoryview(bytearray(NUM_BLOCKS * loaded.kv_spec.row_bytes)))
    runner.run(decode_batch([0]))
    before = runner.pool.rows[0].clone()
    batch = decode_batch([0])
    batch.block_copies = [(0, 20), (20, 21)]
    runner.run(batch)
    assert before.any()
    assert torch.equal(runner.pool.rows[21], before)


def mixed_batch():
    """A chunk of ten tokens and a decode, in a block of their own."""
    greedy = SamplingParams(max_tokens=1)
    return StepBatch(
        step=1,
        token_ids=np.arange(5, 16),
        positions=np.array([*range(10), 0]),
        query_starts=np.array([0, 10, 11], np.int32),
        context_lens=np.array([10, 1], np.int32),
        block_tables=np.array([[0], [1]], np.int32),
        seq_ids=[0, 1],
        sample_rows=[SampleRow(row, greedy, 0, 0) for row in (10, 9)],
    )


def decode_batch(token_rows):
    """Three sequences of one token each, in a block of their own."""
    greedy = SamplingParams(max_tokens=1)
    return StepBatch(
        step=1,
        token_ids=np.array([5, 6, 7]),
        positions=np.zeros(3, np.int64),
        query_starts=np.arange(4, dtype=np.int32),
        context_lens=np.ones(3, np.int32),
        block_tables=np.array([[0], [1], [2]], np.int32),
        seq_ids=[0, 1, 2],
        sample_rows=[SampleRow(row, greedy, 0, 0) for row in token_rows],
    )
