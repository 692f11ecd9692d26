"""Real models say the same with and without speculation, greedy and sampled, beside each other.

In float32, where the logits of one row and of several differ by rounding only; a token that such a
difference decides would have to be a tie.
"""

import pytest

from baton.engine.protocol.messages import SamplingParams

NUM_TOKENS = 40
# Two tokens are nearly all that comes, so that runs repeat and guesses are often right.
BIAS = ((5, 40.0), (9, 40.0))
GREEDY = SamplingParams(NUM_TOKENS, ignore_eos=True, logit_bias=BIAS)
SAMPLED = SamplingParams(NUM_TOKENS, temperature=1.0, seed=11, ignore_eos=True, logit_bias=BIAS)
FREE = SamplingParams(NUM_TOKENS // 2, temperature=1.0, top_p=0.9, seed=3, ignore_eos=True)


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "deepseek-v3", "gemma2"])
def test_output_is_the_same_with_speculation(name: str, prompts, load_tiny, drive):
    loaded, _ = load_tiny(name)

    def run(num_draft_tokens: int):
        """Three sequences at once, whose prompts take several chunks."""
        driver = drive(loaded, max_step_tokens=48, num_draft_tokens=num_draft_tokens)
        params = zip(prompts, (GREEDY, FREE, SAMPLED), strict=True)
        requests = [driver.request(index, *pair) for index, pair in enumerate(params)]
        return driver, driver.run(requests)

    plain, _ = run(0)
    speculating, news = run(5)

    assert speculating.tokens == plain.tokens
    num_draft_tokens = sum(events.num_draft_tokens for events in news)
    assert 0 < sum(events.num_accepted_tokens for events in news) < num_draft_tokens
    assert len(news) < NUM_TOKENS
