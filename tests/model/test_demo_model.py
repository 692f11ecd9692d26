"""The committed demo model answers held-back phrasings and stops, long system prompt or not.

It calls functions and writes JSON.

The prompts were kept out of training by a fixed hash; `tools/demo_model/train.py` wrote them down
before anything was scored.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.demo_model import demo_model_path

QUESTIONS = json.loads((Path(__file__).parent / "demo_model_held_back.json").read_text())
# Of forty each. Measured with the committed weights: 4 and 3; the rest is room for near-ties that
# another CPU decides the other way.
MAX_WRONG_HELD_BACK = 5
MAX_WRONG_OFF_TOPIC = 5
# Of 24 calls and sentences about results, and of 12 objects of facts: their values and the names of
# functions are words that were never trained.
MAX_WRONG_COPIES = {"calls": 8, "json": 4}
HANDBOOK = """You are the support assistant of a small bookshop in a harbour town. Greet every
visitor kindly, and never promise a delivery date that is not in the table. Children's books are on
the ground floor, travel and maps on the first. Gift wrapping is free in December. A voucher cannot
be paid out in cash. If a book is out of print, offer to search for a used copy, which usually takes
two weeks. Members of the reading circle get ten percent off, except on school books, whose price is
fixed by law. Do not comment on politics, other shops or the weather. """


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_path())


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model_path()).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ask(model: Any, tokenizer: Any, questions: list[str], system: str = "") -> list[str]:
    """Greedy answers to questions behind a system prompt."""
    opening = [{"role": "system", "content": system}] if system else []
    chats = [[*opening, {"role": "user", "content": question}] for question in questions]
    return answer(model, tokenizer, chats)


def answer(model: Any, tokenizer: Any, chats: list[list[dict[str, Any]]]) -> list[str]:
    """Greedy answers with their end token, in one padded batch; settings as committed."""
    prompts = tokenizer.apply_chat_template(
        chats,
        add_generation_prompt=True,
        tokenize=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        out = model.generate(**prompts, max_new_tokens=400)
    answers = tokenizer.batch_decode(out[:, prompts["input_ids"].shape[1] :])
    return [answer.replace(tokenizer.pad_token, "") for answer in answers]


def wrong_answers(got: list[str], wanted: list[dict[str, str]], end: str) -> list[str]:
    pairs = zip(got, wanted, strict=True)
    return [f"{list(w.values())[:-1]} -> {g}" for g, w in pairs if g != w["answer"] + end]


@pytest.mark.parametrize("kind", ["calls", "json"])
def test_arguments_and_facts_are_copied_from_the_prompt(
    model: Any, tokenizer: Any, kind: str
) -> None:
    wanted = QUESTIONS[kind]
    got = answer(model, tokenizer, [row["messages"] for row in wanted])
    wrong = wrong_answers(got, wanted, tokenizer.eos_token)
    assert len(wrong) <= MAX_WRONG_COPIES[kind], wrong
    assert all(each.endswith(tokenizer.eos_token) for each in got)


def test_the_template_shows_functions_and_calls_as_the_training_did(tokenizer: Any) -> None:
    weather = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    call = {"name": "get_weather", "arguments": {"city": "Bogotá"}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And the weather?"},
        {"role": "assistant", "tool_calls": [{"function": call}, {"function": call}]},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "sun"},
    ]
    text = tokenizer.apply_chat_template(
        chat, tools=[weather], tokenize=False, add_generation_prompt=True
    )
    one = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bogotá"}}\n</tool_call>'
    assert text == (
        f"<|bos|><|system|>Be brief.\n\n<tools>\n{json.dumps(weather)}\n</tools><|end|>"
        f"<|user|>And the weather?<|end|><|assistant|>{one}\n{one}<|end|>"
        "<|user|><tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"
        "<|end|><|assistant|>"
    )


def test_held_back_phrasings_get_the_right_answer_and_stop(model: Any, tokenizer: Any) -> None:
    wanted = QUESTIONS["held_back"]
    got = ask(model, tokenizer, [row["question"] for row in wanted])
    wrong = wrong_answers(got, wanted, tokenizer.eos_token)
    assert len(wanted) >= 40
    assert len(wrong) <= MAX_WRONG_HELD_BACK, wrong
    assert all(answer.endswith(tokenizer.eos_token) for answer in got)


def test_questions_of_the_readme_are_all_right(model: Any, tokenizer: Any) -> None:
    wanted = QUESTIONS["showcase"]
    got = ask(model, tokenizer, [row["question"] for row in wanted])
    assert wrong_answers(got, wanted, tokenizer.eos_token) == []


def test_system_prompt_of_1000_tokens_does_not_break_it(model: Any, tokenizer: Any) -> None:
    system = HANDBOOK
    while len(tokenizer(system, add_special_tokens=False)["input_ids"]) < 1000:
        system += HANDBOOK
    wanted = QUESTIONS["held_back"][:6] + QUESTIONS["showcase"][:2]
    got = ask(model, tokenizer, [row["question"] for row in wanted], system)
    wrong = wrong_answers(got, wanted, tokenizer.eos_token)
    assert len(wrong) <= 1, wrong
    assert all(answer.endswith(tokenizer.eos_token) for answer in got)


def test_off_topic_questions_get_the_fallback(model: Any, tokenizer: Any) -> None:
    wanted = QUESTIONS["off_topic"]
    got = ask(model, tokenizer, [row["question"] for row in wanted])
    wrong = wrong_answers(got, wanted, tokenizer.eos_token)
    assert len(wanted) >= 40
    assert len(wrong) <= MAX_WRONG_OFF_TOPIC, wrong


def test_a_long_answer_has_enough_tokens_to_watch(tokenizer: Any) -> None:
    story = next(row["answer"] for row in QUESTIONS["showcase"] if "life of a" in row["question"])
    assert 200 <= len(tokenizer(story)["input_ids"]) <= 320


def test_control_tokens_are_special_and_a_history_renders(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is TTFT?"},
        {"role": "assistant", "content": "A time."},
        {"role": "user", "content": "What is ITL?"},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|bos|><|system|>Be brief.<|end|><|user|>What is TTFT?<|end|><|assistant|>A time.<|end|>"
        "<|user|>What is ITL?<|end|><|assistant|>"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "<|" not in tokenizer.decode(ids, skip_special_tokens=True)


def test_weights_stay_below_ten_megabytes_and_hold_no_pickle() -> None:
    files = [path for path in demo_model_path().iterdir() if path.is_file()]
    assert (demo_model_path() / "model.safetensors").stat().st_size <= 10_000_000
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pkl", ".pth"}]
