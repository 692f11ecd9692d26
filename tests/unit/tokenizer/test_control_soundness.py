"""Whatever a request spells, in whatever pieces: no control id but the template's own."""

import json
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton.testing.tokenizer_folder import CONTROL_TOKENS, UNK, train
from services.tokenizer.prompt_tokenizer import PromptTokenizer, added_tokens
from services.tokenizer.render_messages import Rendered, RenderRequest, TemplateSetup
from services.tokenizer.template_set import TemplateSet

TEMPLATES = Path(__file__).parent / "templates"
# These cut out and rewrite thoughts that a request spells; the others write the same whatever the
# request says.
REWRITING = {"tool_call_tags_with_thinking", "wide_bars_with_thoughts"}
FIXED = sorted({path.stem for path in TEMPLATES.glob("*.jinja")} - REWRITING)
PIECES = (
    *CONTROL_TOKENS, "<|", "|>", "<", ">", "</", "im_", "im_start", "think", "user", "s", "/", "[",
    "]", "INST", "｜", "<｜User", "tool_call", " ", "\n", "x", "|", "\x00", "＜|im_end|＞",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
keys = st.one_of(st.sampled_from(("think", "s", "tool_call", "|im_end|", "city")), texts)


class Model:
    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        setup = TemplateSetup(
            {"default": (TEMPLATES / f"{name}.jinja").read_text()},
            {"bos_token": "<s>", "eos_token": "</s>"},
            added_tokens(tokenizer),
        )
        self.templates = TemplateSet(setup, lambda: datetime(2026, 11, 20), _unlimited)
        self.tokenizer = PromptTokenizer(
            tokenizer, self.templates.control_tokens, lambda n: b"\3" * n
        )
        self.control_ids = {
            tokenizer.token_to_id(token) for token in self.templates.control_tokens
        } - {tokenizer.token_to_id(UNK)}
        self._takes_parts = True
        self._takes_parts = self.control_sequence("a", "b", "c", "d") is not None

    def control_sequence(self, *words: str) -> list[int] | None:
        """Control ids of a conversation with `words` in its free places; None when refused."""
        user, assistant, description, key = words
        schema = {"type": "object", "properties": {"a": {"type": "string", key: description}}}
        function = {"name": "f", "description": description, "parameters": schema}
        messages = [
            {"role": "user", "content": user},
            {"role": "assistant", "content": assistant},
            {"role": "user", "content": self._content_of(words)},
            {"role": "assistant", "content": user, "thinking": f".{assistant}"},
            # Equal to none before it: a template may ask which one is the last.
            {"role": "user", "content": f"{description}.{user}"},
        ]
        request = RenderRequest(
            json.dumps(messages).encode(),
            json.dumps([{"type": "function", "function": function}]).encode(),
        )
        rendered = self.templates.render(request)
        return None if rendered.fault else self.ids_of(rendered)

    def _content_of(self, words: tuple[str, ...]) -> str | list[dict[str, str]]:
        """In parts where the template reads them; others refuse all that is not text."""
        parts = [{"type": "text", "text": word} for word in words]
        return parts if self._takes_parts else "\n".join(words)

    def ids_of(self, rendered: Rendered) -> list[int]:
        ids = self.tokenizer.encode_rendered(rendered).ids
        return [token_id for token_id in ids if token_id in self.control_ids]


def _unlimited(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


@pytest.fixture(scope="module", params=FIXED)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param, train("byte_level"))


def test_control_ids_do_not_depend_on_what_a_request_spells(model: Model) -> None:
    ordinary = model.control_sequence("a", "b", "c", "d")
    assert ordinary
    num_rendered = 0

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(words=st.tuples(texts, texts, texts, keys))
    def compare(words: tuple[str, ...]) -> None:
        nonlocal num_rendered
        found = model.control_sequence(*words)
        if found is not None:
            num_rendered += 1
            assert found == ordinary

    compare()
    assert num_rendered >= 20
