"""Deterministic mode: what a sequence gets is the same, bit for bit, alone and in any company.

Logits are compared step by step, and then whole requests through the real engine: tokens, and the
logprobs of the likeliest ones, which no difference in the logits could leave as they are.
"""

import random
from collections import defaultdict

import msgspec
import numpy as np
import pytest
import torch

from baton.engine.protocol.batch import SampleRow, StepBatch
from baton.engine.protocol.messages import Bind, Fork, SamplingParams, Start
from baton.model.cpu import dense, native
from baton.model.cpu.cpu_attention import CpuAttention
from baton.model.cpu.dense import DenseForward
from baton.model.forward_pass import LoneTokens
from baton.model.load.load import LoadOptions, load_model
from baton.model.tensors.torch_attention import TorchAttention
from baton.model.torch_runner import TorchRunner
from baton.testing.tiny_models import VOCAB_SIZE
from baton.worker.core_main import build_engine, parse_options
from baton.worker.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_kernels")
DTYPES = ("float32", "bfloat16")
WHOLE_PANELS = {"head_dim": 32}
# Two of the compiled step; two that run through modules, one of them with experts.
COMPILED, MODULES = ("qwen3", "mistral-window"), ("gemma2", "qwen3-moe")
BLOCK, MAX_BLOCKS = 16, 12
LENGTHS = (150, 61, 90)
PARAMS = SamplingParams(max_tokens=1)


@pytest.fixture
def load(model_folder):
    def load_as(name, dtype):
        changes = WHOLE_PANELS if name in COMPILED else {}
        folder = model_folder(name, **changes)
        return load_model(str(folder), LoadOptions(dtype=dtype))

    return load_as


@pytest.fixture
def texts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def logits_of(runner, texts, plan) -> list[torch.Tensor]:
    """Logits after every token of each text, whose tokens are computed step by step as planned."""
    spec = runner.kv_spec
    runner.bind_pool(memoryview(bytearray(len(texts) * MAX_BLOCKS * spec.row_bytes)))
    tables = np.random.default_rng(5).permutation(len(texts) * MAX_BLOCKS).astype(np.int32)
    tables = tables.reshape(-1, MAX_BLOCKS)
    done, found = [0] * len(texts), [[] for _ in texts]
    for counts in plan:
        parts = [(s, done[s], done[s] + n) for s, n in enumerate(counts) if n]
        sizes = [end - start for _, start, end in parts]
        batch = StepBatch(
            step=0,
            token_ids=np.concatenate([np.array(texts[s][a:b], np.int64) for s, a, b in parts]),
            positions=np.concatenate([np.arange(a, b, dtype=np.int64) for _, a, b in parts]),
            query_starts=np.cumsum([0, *sizes], dtype=np.int32),
            context_lens=np.array([end for _, _, end in parts], np.int32),
            block_tables=tables[[s for s, _, _ in parts]],
            seq_ids=[s for s, _, _ in parts],
            sample_rows=[SampleRow(row, PARAMS, 0, 0) for row in range(sum(sizes))],
        )
        logits = runner.logits(batch).clone()
        for (s, _, end), rows in zip(parts, logits.split(sizes), strict=True):
            found[s].append(rows)
            done[s] = end
    assert done == [len(text) for text in texts]
    return [torch.cat(rows) for rows in found]


def random_plan(rng: random.Random, lengths=LENGTHS) -> list[list[int]]:
    """Chunks of one to eighty tokens and pauses, in steps of one to all texts."""
    left, plan = list(lengths), []
    while any(left):
        counts = [min(n, rng.choice((0, 1, 1, 5, 9, 16, 48, 80))) for n in left]
        if any(counts):
            plan.append(counts)
            left = [n - count for n, count in zip(left, counts, strict=True)]
    return plan


def whole_texts_at_once() -> list[list[int]]:
    return [list(LENGTHS)]


def alone(index: int, size: int) -> list[list[int]]:
    """One text, in chunks of `size`, before the others."""
    counts = [min(size, LENGTHS[index] - at) for at in range(0, LENGTHS[index], size)]
    steps = [[n if s == index else 0 for s in range(len(LENGTHS))] for n in counts]
    return [*steps, [0 if s == index else n for s, n in enumerate(LENGTHS)]]


def assert_same_in_all_plans(runner, texts, seed: int, num_plans: int) -> None:
    rng = random.Random(seed)
    expected = [logits_of(runner, texts, alone(s, 1))[s] for s in range(len(texts))]
    plans = [whole_texts_at_once(), *(random_plan(rng) for _ in range(num_plans))]
    for plan in plans:
        for actual, wanted in zip(logits_of(runner, texts, plan), expected, strict=True):
            assert torch.equal(actual, wanted), f"seed {seed}, {plan}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_steps_give_each_token_what_it_gets_alone(name, dtype, load, texts):
    runner = TorchRunner(load(name, dtype), is_deterministic=True)
    assert isinstance(runner._forward, DenseForward)
    assert_same_in_all_plans(runner, texts, seed=11, num_plans=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_so_does_each_instruction_set(isa, dtype, load, texts, monkeypatch):
    monkeypatch.setattr(dense, "best_isa", lambda: native.ISAS.index(isa))
    runner = TorchRunner(load("qwen3", dtype), is_deterministic=True)
    assert_same_in_all_plans(runner, texts, seed=12, num_plans=1)


@pytest.mark.parametrize("backend", [CpuAttention, TorchAttention])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_transformers_modules_give_each_token_what_it_gets_alone(name, dtype, backend, load, texts):
    runner = TorchRunner(load(name, dtype), backend(), is_deterministic=True)
    short = [text[:24] for text in texts]
    expected = logits_of(runner, short, [[1, 0, 0]] * 24 + [[0, 24, 24]])
    for plan in ([[24, 24, 24]], random_plan(random.Random(13), (24, 24, 24))):
        for actual, wanted in zip(logits_of(runner, short, plan), expected, strict=True):
            assert torch.equal(actual, wanted), plan


def test_a_worker_that_is_asked_for_it_builds_such_an_engine(model_folder):
    folder = model_folder("qwen3", **WHOLE_PANELS)
    settings = Settings(model=str(folder), kv_memory="2MB", deterministic="on")
    engine = build_engine(parse_options(settings.core_arguments()))
    assert engine.runner._forward._is_deterministic
    assert engine.runner._sampler._is_deterministic


def test_models_off_the_compiled_path_are_computed_token_by_token(load):
    runner = TorchRunner(load("gemma2", "float32"), is_deterministic=True)
    assert isinstance(runner._forward, LoneTokens)


@pytest.mark.parametrize("name", [*COMPILED, *MODULES])
def test_without_it_chunks_show_in_the_logits(name, load, texts):
    """What the mode is for: were this to fail, the mode would have become free, or moot."""
    runner = TorchRunner(load(name, "float32"))
    whole = logits_of(runner, texts, whole_texts_at_once())[0]
    cut = logits_of(runner, texts, alone(0, 1))[0]
    torch.testing.assert_close(whole, cut, atol=1e-4, rtol=1e-4)
    assert not torch.equal(whole, cut)


class Schedule:
    """Requests that come at random steps to a small pool: they wait, share prefixes, are evicted.

    Some sample and some are greedy, some have several choices, some have the same prompt.
    """

    NUM_TOKENS, NUM_REQUESTS = 14, 9

    def __init__(self, seed: int, lengths: tuple[int, ...]) -> None:
        rng = self._rng = random.Random(seed)
        self._first_id = 0
        stems = [[rng.randrange(3, VOCAB_SIZE) for _ in range(max(lengths))] for _ in range(2)]
        self.prompts, self.samplings, self.num_choices = [], [], []
        for index in range(self.NUM_REQUESTS):
            tail = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(4))]
            self.prompts.append(rng.choice(stems)[: rng.choice(lengths)] + tail)
            self.num_choices.append(3 if index % 4 == 1 else 1)
            self.samplings.append(
                SamplingParams(
                    self.NUM_TOKENS,
                    temperature=rng.choice((0.0, 0.7, 1.3)),
                    top_p=rng.choice((1.0, 0.9)),
                    seed=rng.randrange(1 << 30),
                    frequency_penalty=rng.choice((0.0, 0.5)),
                    ignore_eos=True,
                    num_logprobs=4,
                )
            )

    def request(self, driver, index: int):
        seq_id = self._first_id + 10 * index
        add = driver.request(seq_id, self.prompts[index], self.samplings[index])
        forks = tuple(Fork(seq_id + n, n) for n in range(1, self.num_choices[index]))
        return msgspec.structs.replace(add, forks=forks)

    def run(self, driver, wanted=None):
        """Everything reported of each sequence, in order; `wanted` = one request alone."""
        self._first_id += 1000  # a runner never sees an id again
        arrivals = defaultdict(list)
        for index in range(self.NUM_REQUESTS) if wanted is None else (wanted,):
            arrivals[self._rng.randrange(12)].append(self.request(driver, index))
        reported, num_preemptions, num_cached, step = defaultdict(list), 0, 0, 0
        while arrivals or driver.engine.has_work:
            events = driver.engine.step(arrivals.pop(step, []))
            step += 1
            if events is None:
                continue
            num_preemptions += events.num_preemptions
            num_cached += sum(started.num_cached_tokens for started in events.started)
            for seq_id, token in zip(events.token_seq_ids, events.token_ids, strict=True):
                reported[seq_id].append(token)
            for one in events.logprobs:
                reported[one.seq_id].append(report_of(one))
        driver.engine.check_integrity()
        by_location = {seq_id - self._first_id: news for seq_id, news in reported.items()}
        return by_location, num_preemptions, num_cached


def report_of(one) -> tuple:
    return (one.index, one.token_id, one.logprob, tuple(one.top_ids), tuple(one.top_logprobs))


def run_schedule(load, drive, name, dtype, seed, lengths=(40, 70, 90), **options):
    """Each request alone, then all of them; returns how often each mishap took place."""
    schedule = Schedule(seed, lengths)
    loaded = load(name, dtype)
    runner = TorchRunner(loaded, is_deterministic=True)

    def run(wanted=None, **sizes):
        return schedule.run(drive(loaded, runner=runner, **sizes), wanted)

    expected = {}
    for index in range(Schedule.NUM_REQUESTS):
        expected |= run(index, num_blocks=40, max_step_tokens=256)[0]
    actual, num_preemptions, num_cached = run(num_blocks=10, max_step_tokens=40, **options)
    assert actual.keys() == expected.keys()
    for seq_id, wanted in expected.items():
        assert actual[seq_id] == wanted, f"seed {seed}, sequence {seq_id}"
    return num_preemptions, num_cached


@pytest.mark.parametrize("num_draft_tokens", [0, 12])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPILED)
def test_requests_in_a_crowd_get_what_they_get_alone(name, dtype, num_draft_tokens, load, drive):
    seed = 21 if num_draft_tokens else 22
    mishaps = run_schedule(load, drive, name, dtype, seed, num_draft_tokens=num_draft_tokens)
    assert all(mishaps), f"preemptions and cached tokens: {mishaps}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_so_do_requests_to_a_model_of_modules(dtype, load, drive):
    run_schedule(load, drive, "qwen3-moe", dtype, 23, lengths=(9, 20, 33))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_handoff_changes_nothing(dtype, load, texts, drive):
    loaded = load("qwen3", dtype)
    sampling = SamplingParams(20, temperature=0.8, seed=9, ignore_eos=True, num_logprobs=4)
    make = lambda: TorchRunner(loaded, is_deterministic=True)  # noqa: E731
    whole = drive(loaded, max_step_tokens=256, runner=make())
    whole.run([whole.request(0, texts[0], sampling)])

    prefill = drive(loaded, max_step_tokens=32, runner=make())
    prefill.run([prefill.request(0, texts[0], sampling, "prefill")])
    decode = drive(loaded, max_step_tokens=32, runner=make())
    mates = [decode.request(n, texts[n], sampling) for n in (1, 2)]
    decode.run([*mates, decode.request(0, texts[0], sampling, "remote")])
    [bound] = [bound for events in decode.run([Bind(0)]) for bound in events.bound]
    source_ids = prefill.events[0].started[0].rows
    for source, target in zip(source_ids, bound.rows, strict=False):
        decode.row(target)[:] = prefill.row(source)
    decode.run([Start(0, prefill.tokens[0][0])])

    assert prefill.tokens[0] + decode.tokens[0] == whole.tokens[0]
    assert logprobs_of(prefill) + logprobs_of(decode) == logprobs_of(whole)


def logprobs_of(driver) -> list[tuple]:
    """What was reported of sequence 0."""
    return [report_of(one) for news in driver.events for one in news.logprobs if one.seq_id == 0]
