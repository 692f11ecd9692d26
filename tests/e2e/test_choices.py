"""Several choices of one prompt, and beam search, through the whole stack."""

import openai
import pytest

QUESTION = "Tell me about the prefix cache."
MODEL = "baton-demo"


def ask(stack, n: int, question: str = QUESTION, **fields) -> openai.types.chat.ChatCompletion:
    return stack.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], n=n, **fields
    )


def texts(answer) -> list[str]:
    return [choice.message.content for choice in answer.choices]


def computed_prompt_tokens(stack) -> float:
    """On all workers: what was looked up in their caches and not found."""
    names = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    queries, hits = (
        sum(stack.metric(worker, name) for worker in stack.workers() if "prefill" in worker)
        for name in names
    )
    return queries - hits


def handoffs(stack) -> float:
    labels = {"direction": "received", "outcome": "complete"}
    return sum(
        stack.metric(worker, "baton_handoff_transfers_total", **labels)
        for worker in stack.workers()
        if "decode" in worker
    )


def test_seeded_choices_are_the_same_however_many_are_asked_for_and_share_a_prompt(stack) -> None:
    sampled = {"temperature": 1.5, "seed": 11, "max_tokens": 24}
    question = "zq " * 60 + "?"
    tokens_before, handoffs_before = computed_prompt_tokens(stack), handoffs(stack)
    answer = ask(stack, 3, question, **sampled)
    num_computed = computed_prompt_tokens(stack) - tokens_before
    assert handoffs(stack) - handoffs_before == 1
    usage = answer.usage
    assert num_computed == usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
    assert len(set(texts(answer))) == 3
    for n in (1, 2):
        assert texts(ask(stack, n, question, **sampled)) == texts(answer)[:n]
    assert answer.usage.completion_tokens <= 3 * 24


def test_a_stop_string_ends_one_choice_and_not_the_others(stack) -> None:
    sampled = {"temperature": 1.5, "seed": 3, "max_tokens": 40}
    whole = texts(ask(stack, 3, **sampled))
    stop = next(word for word in whole[0].split() if all(word not in text for text in whole[1:]))
    cut = ask(stack, 3, stop=[stop], **sampled)
    assert texts(cut) == [whole[0][: whole[0].index(stop)], *whole[1:]]


@pytest.mark.parametrize(
    "options", [{}, {"length_penalty": 0.0, "early_stopping": True}], ids=["plain", "early"]
)
def test_beam_search_equals_generate(stack, generate, options: dict) -> None:
    expected = generate(QUESTION, 40, num_beams=3, num_return_sequences=3, **options)
    answer = ask(stack, 3, max_tokens=40, extra_body={"use_beam_search": True, **options})
    assert texts(answer) == [text for text, _ in expected]
    assert answer.usage.completion_tokens == sum(num_tokens for _, num_tokens in expected)


def test_a_streamed_beam_search_sends_the_same_texts_at_the_end(stack) -> None:
    search = {"max_tokens": 30, "extra_body": {"use_beam_search": True}}
    pieces = ["", ""]
    for chunk in ask(stack, 2, stream=True, **search):
        pieces[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert pieces == texts(ask(stack, 2, **search))


def test_what_does_not_go_with_beams_is_refused(stack) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(stack, 2, temperature=1.0, extra_body={"use_beam_search": True})
    assert refused.value.param == "temperature"
