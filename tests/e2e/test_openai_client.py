"""The unchanged OpenAI client against the whole stack; `generate` is the truth."""

import asyncio

import openai
import pytest

QUESTION = "What is TTFT?"
LONG_QUESTION = "Tell me the life of a request."
MODELS = ["baton-demo", "gpt-4o"]


def messages(question: str) -> list[dict]:
    return [{"role": "user", "content": question}]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("question", [QUESTION, LONG_QUESTION])
def test_chat_text_equals_generate(stack, reference, model: str, question: str) -> None:
    text, num_tokens = reference(question, 400)
    answer = stack.client().chat.completions.create(
        model=model, messages=messages(question), temperature=0, max_tokens=400
    )
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == num_tokens
    assert answer.model == model


def test_chat_streams_the_same_text_with_usage(stack, reference) -> None:
    text, num_tokens = reference(LONG_QUESTION, 400)
    stream = stack.client().chat.completions.create(
        model="baton-demo",
        messages=messages(LONG_QUESTION),
        temperature=0,
        max_tokens=400,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 20
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == num_tokens


async def test_async_client_streams_and_answers(stack, reference) -> None:
    text, _ = reference(QUESTION, 200)
    async with stack.async_client() as client:
        whole, stream = await asyncio.gather(
            client.chat.completions.create(
                model="gpt-4o", messages=messages(QUESTION), temperature=0
            ),
            client.chat.completions.create(
                model="gpt-4o", messages=messages(QUESTION), temperature=0, stream=True
            ),
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert whole.choices[0].message.content == text
    assert "".join(pieces) == text


def test_completions_answer_and_stream(stack) -> None:
    arguments = {
        "model": "baton-demo",
        "prompt": "What is TTFT?",
        "temperature": 0,
        "max_tokens": 12,
    }
    whole = stack.client().completions.create(**arguments)
    streamed = stack.client().completions.create(**arguments, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
    assert whole.usage.completion_tokens <= 12
    assert whole.choices[0].finish_reason in {"stop", "length"}


def test_responses_answer_with_the_official_events(stack, reference) -> None:
    text, num_tokens = reference(QUESTION, 200)
    client = stack.client()
    whole = client.responses.create(model="baton-demo", input=QUESTION, temperature=0)
    assert whole.output_text == text
    assert whole.status == "completed"
    assert whole.usage.output_tokens == num_tokens
    events = list(
        client.responses.create(model="baton-demo", input=QUESTION, temperature=0, stream=True)
    )
    types = [event.type for event in events]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_responses_stream_through_the_async_client(stack, reference) -> None:
    text, _ = reference(QUESTION, 200)
    async with stack.async_client() as client:
        stream = await client.responses.create(
            model="gpt-4o", input=QUESTION, temperature=0, stream=True
        )
        pieces = [e.delta async for e in stream if e.type == "response.output_text.delta"]
    assert "".join(pieces) == text


def test_stop_strings_cut_across_token_borders(stack, reference) -> None:
    text, _ = reference(QUESTION, 200)
    stop = text[17:24]
    answer = stack.client().chat.completions.create(
        model="baton-demo", messages=messages(QUESTION), temperature=0, stop=[stop]
    )
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_ends_with_length_and_n_gives_independent_choices(stack) -> None:
    answer = stack.client().chat.completions.create(
        model="baton-demo", messages=messages(LONG_QUESTION), max_tokens=5, n=3, temperature=0
    )
    assert len(answer.choices) == 3
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert len({choice.message.content for choice in answer.choices}) == 1
    assert answer.usage.completion_tokens == 15


def test_seeded_sampling_repeats(stack) -> None:
    def ask(seed: int) -> str:
        answer = stack.client().chat.completions.create(
            model="baton-demo",
            messages=messages("zzz qqq"),
            temperature=2.0,
            seed=seed,
            max_tokens=20,
        )
        return answer.choices[0].message.content

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_models_lists_the_model_and_its_alias(stack) -> None:
    names = {model.id for model in stack.client().models.list()}
    assert names == {*MODELS, "gpt-4o-mini", "gpt-3.5-turbo"}


def test_unknown_model_bad_key_and_unsupported_field_have_openai_errors(stack) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        stack.client().chat.completions.create(model="nope", messages=messages("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as bad:
        stack.client("bt-wrong").chat.completions.create(model="gpt-4o", messages=messages("x"))
    assert bad.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as unsupported:
        stack.client().chat.completions.create(model="gpt-4o", messages=messages("x"), store=True)
    assert unsupported.value.param == "store"
