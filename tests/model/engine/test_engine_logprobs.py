"""Logprobs out of the real engine are transformers' log_softmax, whatever happens on the way."""

import pytest

from baton.engine.protocol.messages import SamplingParams

NUM_TOKENS = 20
SAMPLING = SamplingParams(
    NUM_TOKENS, ignore_eos=True, num_logprobs=3, num_prompt_logprobs=2, frequency_penalty=0.4
)


def assert_logprobs_of(reported, tokens: list[int], first: int, num_top: int, logprobs):
    """`reported` is of `tokens[first:]`; `logprobs` of the whole text, after each token."""
    assert [one.token_id for one in reported] == tokens[first:]
    for index, one in enumerate(reported, first):
        expected = logprobs[index - 1]
        assert one.logprob == pytest.approx(float(expected[tokens[index]]), abs=1e-4)
        top = expected.topk(num_top).values.tolist()
        assert one.top_logprobs == pytest.approx(top, abs=1e-4)
        assert [float(expected[token]) for token in one.top_ids] == pytest.approx(top, abs=1e-4)


@pytest.mark.parametrize("num_blocks", [64, 8])
def test_logprobs_of_prompts_and_outputs_equal_log_softmax(num_blocks, prompts, load_tiny, drive):
    loaded, reference = load_tiny("qwen3")
    driver = drive(loaded, num_blocks=num_blocks, max_step_tokens=32)
    news = driver.run([driver.request(i, prompt, SAMPLING) for i, prompt in enumerate(prompts)])
    assert (sum(events.num_preemptions for events in news) > 0) == (num_blocks == 8)
    for index, prompt in enumerate(prompts):
        tokens = prompt + driver.tokens[index]
        logprobs = reference.logits(tokens).log_softmax(-1)
        of_prompt = [one for e in news for one in e.prompt_logprobs if one.seq_id == index]
        reported = [one for e in news for one in e.logprobs if one.seq_id == index]
        assert [one.index for one in of_prompt] == list(range(1, len(prompt)))
        assert [one.index for one in reported] == list(range(NUM_TOKENS))
        assert_logprobs_of(of_prompt, tokens[: len(prompt)], 1, 2, logprobs)
        assert_logprobs_of(reported, tokens, len(prompt), 3, logprobs)
