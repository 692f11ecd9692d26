"""Every sampling option through the real stack, against transformers on the same weights."""

from collections.abc import Callable
from typing import Any

import pytest

from baton.demo_model import demo_model_path

PROMPT = "What is TTFT? It is the time"
# The beginning of an answer that goes on for 30 tokens.
LONG_PROMPT = "A prefill worker reads prompts and is bound by compute; a decode"
QUESTION = [{"role": "user", "content": "What is TTFT?"}]

Complete = Callable[..., Any]
# Token ids -> transformers' logits after each of them, `[num_tokens, vocab]`.
Logits = Callable[[list[int]], Any]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(demo_model_path()))


@pytest.fixture(scope="module")
def logits() -> Logits:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(str(demo_model_path()), dtype=torch.float32)

    @torch.inference_mode()
    def after(ids: list[int]) -> Any:
        return model(torch.tensor([ids]), use_cache=False).logits[0]

    return after


@pytest.fixture
def complete(stack) -> Complete:
    """One greedy legacy completion; what OpenAI's client does not know goes into extra_body."""

    def ask(prompt: Any = PROMPT, **fields: Any) -> Any:
        known = {"max_tokens", "logprobs", "echo", "seed", "temperature", "logit_bias", "stream",
                 "frequency_penalty", "presence_penalty", "top_p", "stop"}  # fmt: skip
        extra = {name: fields.pop(name) for name in list(fields) if name not in known}
        arguments = {"model": "baton-demo", "prompt": prompt, "temperature": 0, **fields}
        return stack.client().completions.create(**arguments, extra_body=extra)

    return ask


def tokens_of(answer: Any) -> list[str]:
    return answer.choices[0].logprobs.tokens


def greedy(
    logits: Logits,
    prompt_ids: list[int],
    num_tokens: int,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> list[int]:
    """Output tokens by the definitions of OpenAI and vLLM."""
    output: list[int] = []
    for _ in range(num_tokens):
        row = logits([*prompt_ids, *output])[-1].clone()
        for token in {*prompt_ids, *output}:
            row[token] *= repetition_penalty if row[token] < 0 else 1 / repetition_penalty
            row[token] -= frequency_penalty * output.count(token)
            row[token] -= presence_penalty * (token in output)
        output.append(int(row.argmax()))
    return output


def test_logit_bias_forces_and_forbids_a_token(complete, tokenizer) -> None:
    free = tokens_of(complete(max_tokens=1, logprobs=0))
    [token] = tokenizer.encode(free[0], add_special_tokens=False)
    other = (token + 1) % 256 + 10
    forced = complete(max_tokens=4, logit_bias={str(other): 100}, logprobs=0)
    assert set(tokens_of(forced)) == {tokenizer.decode([other])}
    forbidden = complete(max_tokens=1, logit_bias={str(token): -100}, logprobs=0)
    assert tokens_of(forbidden) != free


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2}]
)
def test_penalties_change_the_answer_as_their_formulas_say(
    complete, tokenizer, logits, penalty: dict[str, float]
) -> None:
    prompt_ids = tokenizer.encode(PROMPT)
    answer = complete(prompt_ids, max_tokens=24, logprobs=0, ignore_eos=True, **penalty)
    expected = greedy(logits, prompt_ids, 24, **penalty)
    assert expected != greedy(logits, prompt_ids, 24)
    assert tokens_of(answer) == [tokenizer.decode([token]) for token in expected]


def test_min_tokens_lengthens_an_answer_and_ignore_eos_goes_to_the_limit(stack) -> None:
    def num_tokens(**fields: Any) -> int:
        answer = stack.client().chat.completions.create(
            model="baton-demo", messages=QUESTION, temperature=0, max_tokens=90, extra_body=fields
        )
        return answer.usage.completion_tokens

    plain = num_tokens()
    assert plain < 80
    assert num_tokens(min_tokens=plain + 5) > plain + 4
    assert num_tokens(ignore_eos=True) == 90


def test_a_stop_token_ends_the_answer_before_its_text(complete, tokenizer) -> None:
    free = tokens_of(complete(max_tokens=8, logprobs=0))
    stop = free[5]
    [stop_id] = tokenizer.encode(stop, add_special_tokens=False)
    answer = complete(max_tokens=8, logprobs=0, stop_token_ids=[stop_id])
    assert answer.choices[0].finish_reason == "stop"
    assert tokens_of(answer) == free[: free.index(stop)]
    assert answer.usage.completion_tokens == free.index(stop) + 1


def test_top_k_and_min_p_of_1_are_greedy(complete) -> None:
    greedy = complete(max_tokens=12).choices[0].text
    for narrow in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}):
        assert complete(max_tokens=12, temperature=2, seed=3, **narrow).choices[0].text == greedy


def test_seeds_reproduce_with_every_option_at_once(complete) -> None:
    options = {
        "temperature": 1.3, "top_k": 40, "min_p": 0.01, "top_p": 0.99, "presence_penalty": 0.3,
        "frequency_penalty": 0.2, "repetition_penalty": 1.1, "min_tokens": 5,
        "logit_bias": {"300": 2}, "max_tokens": 16,
    }  # fmt: skip
    texts = [complete(seed=seed, **options).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("num_repeats", [1, 20])  # 20: several steps and frames
def test_logprobs_of_prompt_and_output_equal_log_softmax(
    complete, tokenizer, logits, num_repeats: int
) -> None:
    prompt_ids = tokenizer.encode(LONG_PROMPT) * num_repeats
    answer = complete(prompt_ids, max_tokens=10, logprobs=5, echo=True, ignore_eos=True)
    told = answer.choices[0].logprobs
    assert told.token_logprobs[0] is None
    ids = [*prompt_ids, *greedy(logits, prompt_ids, 10)]
    expected = logits(ids).log_softmax(-1)
    assert len(told.tokens) == len(ids)
    for place in range(1, len(ids)):
        before = expected[place - 1]
        assert told.token_logprobs[place] == pytest.approx(float(before[ids[place]]), abs=1e-4)
        top = sorted(told.top_logprobs[place].values(), reverse=True)[:5]
        assert top == pytest.approx(before.topk(5).values.tolist(), abs=1e-4)
    text = answer.choices[0].text
    for place in range(len(prompt_ids), len(ids)):
        assert text[told.text_offset[place] :].startswith(told.tokens[place])


def test_echo_returns_the_prompt_and_max_tokens_0_only_scores_it(complete, tokenizer) -> None:
    plain = complete(max_tokens=6)
    echoed = complete(max_tokens=6, echo=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text
    scored = complete(max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == PROMPT
    assert scored.usage.completion_tokens == 0
    assert len(tokens_of(scored)) == scored.usage.prompt_tokens
    assert complete(max_tokens=0, echo=True, logprobs=1, n=2).choices[1].text == PROMPT
    streamed = complete(max_tokens=6, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed.choices[0].text


def test_chat_logprobs_are_bytes_of_the_text_streamed_and_whole(stack) -> None:
    arguments = {
        "model": "baton-demo", "messages": QUESTION, "temperature": 0, "max_tokens": 20,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    whole = stack.client().chat.completions.create(**arguments).choices[0]
    chunks = stack.client().chat.completions.create(**arguments, stream=True)
    streamed = [
        entry
        for chunk in chunks
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == whole.logprobs.content
    assert bytes(byte for entry in streamed for byte in entry.bytes).decode() == (
        whole.message.content
    )
    for entry in streamed:
        assert entry.logprob == entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob


def test_a_stop_string_takes_its_logprobs_with_it(stack) -> None:
    arguments = {"model": "baton-demo", "messages": QUESTION, "temperature": 0, "logprobs": True}
    text = stack.client().chat.completions.create(**arguments).choices[0].message.content
    cut = stack.client().chat.completions.create(**arguments, stop=text[17:24])
    told = cut.choices[0].logprobs.content
    assert "".join(entry.token for entry in told).startswith(text[: text.index(text[17:24])])
    assert cut.usage.completion_tokens >= len(told)


def test_a_response_includes_logprobs_when_asked(stack) -> None:
    answer = stack.client().responses.create(
        model="baton-demo", input="What is TTFT?", temperature=0, max_output_tokens=20,
        include=["message.output_text.logprobs"], top_logprobs=1,
    )  # fmt: skip
    [part] = answer.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert part.logprobs[0].top_logprobs[0].logprob == part.logprobs[0].logprob
