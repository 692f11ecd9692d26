"""Lists of prompts and what vLLM's users send, with OpenAI's own client."""

from typing import Any

import httpx
import openai
import pytest

MODEL = "baton-demo"
PROMPTS = ["What is TTFT? It is", "The prefix cache", "A router"]
QUESTION = [{"role": "user", "content": "What is TTFT?"}]


def complete(stack, prompt: Any, **fields: Any) -> Any:
    known = {"max_tokens", "logprobs", "echo", "n", "best_of", "seed", "stream", "temperature",
             "stream_options"}  # fmt: skip
    extra = {name: fields.pop(name) for name in list(fields) if name not in known}
    arguments = {"temperature": 0, **fields, "extra_body": extra}
    return stack.client().completions.create(model=MODEL, prompt=prompt, **arguments)


def chat(stack, messages: Any = QUESTION, **fields: Any) -> Any:
    return stack.client().chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=8, **fields
    )


def post(stack, path: str, **fields: Any) -> Any:
    root = stack.base_url.removesuffix("/v1")
    headers = {"authorization": f"Bearer {stack.api_key}"}
    body = {"model": MODEL, **fields}
    answer = httpx.post(f"{root}{path}", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_list_of_prompts_is_answered_as_each_of_them(stack) -> None:
    sampled = {"max_tokens": 6, "temperature": 1.0, "seed": 5, "n": 2}
    together = complete(stack, PROMPTS, **sampled)
    alone = [complete(stack, prompt, **sampled) for prompt in PROMPTS]
    texts = [choice.text for answer in alone for choice in answer.choices]
    assert [choice.text for choice in together.choices] == texts
    assert [choice.index for choice in together.choices] == list(range(6))
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(together.usage, name) == sum(getattr(each.usage, name) for each in alone)


def test_a_streamed_list_has_the_same_texts(stack) -> None:
    whole = complete(stack, PROMPTS, max_tokens=6)
    texts = [""] * len(PROMPTS)
    for chunk in complete(stack, PROMPTS, max_tokens=6, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_a_batch_of_evaluations_scores_as_single_ones_do(stack) -> None:
    """Loglikelihoods as lm-eval asks for them: token ids, echo, one sampled token."""
    ids = [post(stack, "/tokenize", prompt=prompt)["tokens"] for prompt in PROMPTS]
    scored = {"echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
    together = complete(stack, ids, **scored)
    for choice, prompt_ids in zip(together.choices, ids, strict=True):
        [alone] = complete(stack, prompt_ids, **scored).choices
        assert choice.logprobs.tokens == alone.logprobs.tokens
        assert len(choice.logprobs.token_logprobs) == len(prompt_ids) + 1
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(
            alone.logprobs.token_logprobs[1:], abs=1e-4
        )


def test_the_best_of_several_is_one_of_them(stack) -> None:
    sampled = {"max_tokens": 8, "temperature": 1.5, "seed": 7, "logprobs": 0}
    every = complete(stack, PROMPTS[0], n=4, **sampled).choices
    best = complete(stack, PROMPTS[0], best_of=4, **sampled)
    means = [sum(each.logprobs.token_logprobs) / len(each.logprobs.tokens) for each in every]
    assert best.choices[0].text == every[means.index(max(means))].text
    assert best.usage.completion_tokens > 8


def test_tokens_of_a_prompt_and_back(stack) -> None:
    told = post(stack, "/tokenize", prompt="TTFT is short.", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    bare = post(stack, "/tokenize", prompt="TTFT is short.", add_special_tokens=False)["tokens"]
    assert post(stack, "/detokenize", tokens=bare)["prompt"].strip() == "TTFT is short."
    messages = post(stack, "/tokenize", messages=QUESTION)
    assert messages["count"] == chat(stack).usage.prompt_tokens
    shorter = post(stack, "/tokenize", messages=QUESTION, add_generation_prompt=False)
    assert messages["tokens"][: shorter["count"]] == shorter["tokens"]


def test_the_answer_goes_on_with_the_last_message(stack) -> None:
    text = chat(stack).choices[0].message.content
    begun = [*QUESTION, {"role": "assistant", "content": text[:10]}]
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    told = post(stack, "/tokenize", messages=begun, **asked)["tokens"]
    whole = post(stack, "/tokenize", messages=[*QUESTION, {"role": "assistant", "content": text}])
    assert told[:-3] == whole["tokens"][: len(told) - 3]
    chat(stack, begun, extra_body=asked)


def test_details_of_tokens(stack) -> None:
    asked = {"prompt_logprobs": 1, "return_token_ids": True}
    answer = chat(stack, extra_body=asked)
    ids = post(stack, "/tokenize", messages=QUESTION)["tokens"]
    assert answer.prompt_token_ids == ids
    assert len(answer.prompt_logprobs) == len(ids)
    for token_id, told in list(zip(ids, answer.prompt_logprobs, strict=True))[1:]:
        assert told[str(token_id)]["logprob"] <= max(each["logprob"] for each in told.values())
        assert told[str(token_id)]["rank"] >= len(told)
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(stack, stream=True, stream_options=options))
    assert [chunk.usage.prompt_tokens for chunk in chunks] == [len(ids)] * len(chunks)
    assert chunks[-1].usage.completion_tokens == chunks[-2].usage.completion_tokens


def test_a_running_request_is_cancelled_by_the_id_of_its_answer(stack) -> None:
    fields = {"min_tokens": 900, "ignore_eos": True}
    client = stack.client()
    stream = client.completions.create(
        model=MODEL, prompt=PROMPTS[0], max_tokens=900, stream=True, extra_body=fields
    )
    headers = {"authorization": f"Bearer {stack.api_key}"}
    with pytest.raises(openai.APIError) as ended:
        for number, chunk in enumerate(stream):
            if number == 3:
                url = f"{stack.base_url}/requests/{chunk.id}"
                assert httpx.delete(url, headers=headers).json()["status"] == "cancelled"
    assert ended.value.code == "cancelled"
    gone = httpx.delete(f"{stack.base_url}/requests/req_unknown", headers=headers)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


def test_a_prompt_that_fills_the_context_is_scored(stack) -> None:
    told = post(stack, "/tokenize", prompt="The prefix cache keeps blocks. ")
    ids = (told["tokens"] * told["max_model_len"])[: told["max_model_len"]]
    [choice] = complete(stack, ids, echo=True, logprobs=0, max_tokens=0).choices
    assert len(choice.logprobs.token_logprobs) == len(ids)
    assert complete(stack, ids, echo=True, max_tokens=0).usage.prompt_tokens == len(ids)
    with pytest.raises(openai.BadRequestError) as refused:
        complete(stack, ids, echo=True, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"
