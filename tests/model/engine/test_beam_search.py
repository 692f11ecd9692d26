"""Beam search on tiny float32 models says what transformers' `generate(num_beams=...)` says."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch

from baton.engine.protocol.messages import AddSequence, Bind, Fork, Release, SamplingParams, Start

NUM_TOKENS = 24
PENALTIES = [
    (3, "heuristic", 1.0),
    (4, "full", 1.0),
    (4, "never", 1.5),
    (2, "heuristic", 0.0),
    (5, "full", -0.5),
]
EARLY_STOPPING = {"heuristic": False, "full": True, "never": "never"}


@dataclass(frozen=True)
class Search:
    """One beam search, for both sides."""

    prompt: list[int]
    width: int
    ends: tuple[int, ...] = ()
    early_stopping: str = "heuristic"
    length_penalty: float = 1.0

    def request(self, driver: Any, seq_id: int, kind: str = "local") -> AddSequence:
        sampling = SamplingParams(
            NUM_TOKENS,
            ignore_eos=True,
            stop_token_ids=self.ends,
            beam_width=self.width,
            early_stopping=self.early_stopping,  # type: ignore[arg-type]
            length_penalty=self.length_penalty,
        )
        add = driver.request(seq_id, self.prompt, sampling, kind)
        num_forks = 0 if kind == "prefill" else self.width - 1
        forks = tuple(Fork(seq_id + index, index) for index in range(1, num_forks + 1))
        return msgspec.structs.replace(add, forks=forks)

    def outputs(self, driver: Any, seq_id: int) -> list[list[int]]:
        return [driver.tokens[seq_id + index] for index in range(self.width)]

    @torch.inference_mode()
    def expected(self, reference: Any) -> list[list[int]]:
        ids = torch.tensor([self.prompt])
        output = reference.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=self.width,
            num_return_sequences=self.width,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=list(self.ends) or None,
            pad_token_id=0,
            early_stopping=EARLY_STOPPING[self.early_stopping],
            length_penalty=self.length_penalty,
        )
        return [self._cut(row) for row in output[:, len(self.prompt) :].tolist()]

    def _cut(self, tokens: list[int]) -> list[int]:
        """Without what pads a result that ended early."""
        ends = [index for index, token in enumerate(tokens) if token in self.ends]
        return tokens[: ends[0] + 1] if ends else tokens


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2"])
def test_searches_equal_generate_alone_and_in_one_batch(name, prompts, load_tiny, drive):
    loaded, reference = load_tiny(name)
    searches = [Search(prompt, width) for prompt, width in zip(prompts, (4, 3, 2), strict=True)]
    expected = [search.expected(reference) for search in searches]

    alone = drive(loaded, num_blocks=128, max_step_tokens=64)
    alone.run([searches[0].request(alone, 0)])
    # Nine beams and a greedy sequence for eight places: searches take turns.
    together = drive(loaded, num_blocks=128, max_step_tokens=16)
    greedy = together.request(90, prompts[1], SamplingParams(NUM_TOKENS, ignore_eos=True))
    adds = [search.request(together, 10 * index) for index, search in enumerate(searches)]
    together.run([*adds, greedy])

    assert searches[0].outputs(alone, 0) == expected[0]
    for index, search in enumerate(searches):
        assert search.outputs(together, 10 * index) == expected[index]
    reference.assert_same(
        prompts[1], reference.generate(prompts[1], NUM_TOKENS), together.tokens[90]
    )


@pytest.mark.parametrize(("width", "early_stopping", "length_penalty"), PENALTIES)
def test_end_tokens_penalties_and_stopping_equal_generate(
    width, early_stopping, length_penalty, prompts, load_tiny, drive
):
    loaded, reference = load_tiny("llama")
    driver = drive(loaded, num_blocks=128, max_step_tokens=64)
    # So many that hypotheses end at every length.
    ends = tuple(range(0, 512, 16))
    search = Search(prompts[2], width, ends, early_stopping, length_penalty)
    driver.run([search.request(driver, 0)])
    outputs = search.outputs(driver, 0)
    assert outputs == search.expected(reference)
    # Where length is no merit, results end early.
    assert early_stopping != "full" or min(map(len, outputs)) < NUM_TOKENS


def test_preempted_searches_go_on_unchanged(prompts, load_tiny, drive):
    loaded, reference = load_tiny("qwen3")
    driver = drive(loaded, num_blocks=14, max_step_tokens=32)
    searches = [Search(prompts[0], 3), Search(prompts[2], 3)]
    news = driver.run([search.request(driver, 10 * i) for i, search in enumerate(searches)])
    assert sum(events.num_preemptions for events in news) > 0
    for index, search in enumerate(searches):
        assert search.outputs(driver, 10 * index) == search.expected(reference)


def test_a_search_goes_on_after_the_blocks_moved(prompts, load_tiny, drive):
    loaded, reference = load_tiny("llama")
    search = Search(prompts[0], 4)
    prefill = drive(loaded, max_step_tokens=16)
    prefill.run([search.request(prefill, 0, "prefill")])
    source_ids = prefill.events[0].started[0].rows
    [top] = [told for events in prefill.events for told in events.logprobs]
    decode = drive(loaded, num_blocks=128, max_step_tokens=16)
    decode.run([search.request(decode, 0, "remote")])
    [bound] = [bound for events in decode.run([Bind(0)]) for bound in events.bound]
    for source, target in zip(source_ids, bound.rows, strict=False):
        decode.row(target)[:] = prefill.row(source)
    prefill.run([Release(0)])
    decode.run([Start(0, 0, (), tuple(top.top_ids), tuple(top.top_logprobs))])
    assert search.outputs(decode, 0) == search.expected(reference)


def test_sampled_choices_share_a_prompt_and_equal_lone_ones(prompts, load_tiny, drive):
    loaded, _ = load_tiny("llama")
    sampling = SamplingParams(NUM_TOKENS, temperature=0.9, seed=5, ignore_eos=True)
    together = drive(loaded, num_blocks=128, max_step_tokens=64)
    leader = together.request(0, prompts[0], sampling)
    together.run([msgspec.structs.replace(leader, forks=(Fork(1, 1), Fork(2, 2)))])
    # The second runner takes the model over.
    alone = drive(loaded, num_blocks=128, max_step_tokens=64)
    for choice in range(3):
        add = alone.request(choice, prompts[0], sampling)
        alone.run([msgspec.structs.replace(add, choice=choice)])
    assert together.tokens == alone.tokens
    assert len({tuple(tokens) for tokens in together.tokens.values()}) == 3
