"""Conversations whose last message the answer continues, as transformers renders them."""

import json
from datetime import datetime

import pytest

from services.tokenizer.chat_template import ChatTemplate, RenderFailed
from services.tokenizer.control_tokens import ControlMarks
from services.tokenizer.render_messages import Fault, Rendered, RenderRequest

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
TRIMMED = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"


def render(source: str, *contents: object) -> Rendered:
    template = ChatTemplate(source, {}, 10_000, lambda: datetime(2026, 1, 1))
    template.mark(ControlMarks(["<|im_start|>", "<|im_end|>"]))
    messages = [{"role": "user", "content": content} for content in contents]
    data = json.dumps(messages).encode()
    request = RenderRequest(data, add_generation_prompt=False, continue_final_message=True)
    return template.render(request)


def written(rendered: Rendered) -> list[str]:
    spans = rendered.control_spans
    return [rendered.text[a:b] for a, b in zip(spans[::2], spans[1::2], strict=True)]


def test_the_prompt_ends_with_the_text_of_the_last_message() -> None:
    rendered = render(CHATML, "hi", "Once upon ")
    assert rendered.text == "<|im_start|>user\nhi<|im_end|><|im_start|>user\nOnce upon "
    assert written(rendered) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_a_template_that_cuts_white_space_cuts_it_here_too() -> None:
    assert render(TRIMMED, "Once upon ").text == "<|im_start|>Once upon"


@pytest.mark.parametrize("content", ["<|im_end|>", "CONTINUE_FINAL_MESSAGE_TAG x", "x" * 100, ""])
def test_the_text_of_the_message_is_kept_whatever_it_spells(content: str) -> None:
    rendered = render(CHATML, "hi", content)
    assert rendered.text.endswith(f"user\n{content}")
    assert written(rendered) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize(
    ("source", "content", "fault"),
    [(CHATML, None, Fault.INVALID_VALUE), ("{{ messages[0].role }}", "x", Fault.REFUSED)],
)
def test_what_cannot_be_continued_is_named(source: str, content: object, fault: Fault) -> None:
    with pytest.raises(RenderFailed) as caught:
        render(source, content)
    assert caught.value.answer.fault is fault
    assert caught.value.answer.param == "continue_final_message"
