"""The tokenizer service against transformers: the same text and the same ids, byte for byte."""

import json
import random
from datetime import datetime
from pathlib import Path

import jinja2
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from baton.testing.conversations import Conversation, random_conversation, random_text
from baton.testing.tokenizer_folder import CONTROL_TOKENS, FAMILIES, build_tokenizer_folder
from baton.wire.failures import InvalidRequest
from services.tokenizer.encoder import checked
from services.tokenizer.model_folder import build_tokenizer, read_model_folder
from services.tokenizer.prompt_tokenizer import PromptTokenizer, added_tokens
from services.tokenizer.render_messages import Rendered, RenderRequest, TemplateSetup
from tests.kit.in_process_renderer import InProcessRenderer

TEMPLATES = Path(__file__).parents[2] / "unit" / "tokenizer" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
NUM_CONVERSATIONS = 200
# Enough for the paths that the first test does not take.
NUM_FEWER = 30
SEED = 20


class Pair:
    """One model folder as both sides load it."""

    def __init__(self, folder: Path, family: str) -> None:
        self.family = family
        described = read_model_folder(folder, "m")
        tokenizer = build_tokenizer(described)
        setup = TemplateSetup(
            described.templates,
            described.special_tokens,
            added_tokens(tokenizer),
            described.chat_control_tokens,
        )
        self.renderer = InProcessRenderer(setup, datetime.now)
        self.ours = PromptTokenizer(tokenizer, self.renderer.control_tokens, lambda n: b"\5" * n)
        self.theirs: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)

    async def render(self, chat: Conversation) -> Rendered | None:
        """None when the template refuses the conversation."""
        request = RenderRequest(
            json.dumps(chat["messages"]).encode(),
            json.dumps(chat["tools"]).encode() if chat["tools"] else b"",
            json.dumps(chat["template_kwargs"]).encode(),
            chat["add_generation_prompt"],
        )
        try:
            return checked(await self.renderer.render(request))
        except InvalidRequest:
            return None

    def reference(self, chat: Conversation, tokenize: bool = True) -> list[int] | str | None:
        try:
            return self.theirs.apply_chat_template(
                chat["messages"],
                tools=chat["tools"],
                add_generation_prompt=chat["add_generation_prompt"],
                tokenize=tokenize,
                return_dict=False,
                **chat["template_kwargs"],
            )
        except (jinja2.TemplateError, TypeError, ValueError):
            return None


@pytest.fixture(scope="module", params=[(n, f) for n in NAMES for f in FAMILIES], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, family = request.param
    template = (TEMPLATES / f"{name}.jinja").read_text()
    folder = tmp_path_factory.mktemp("models") / f"{name}-{family}"
    return Pair(build_tokenizer_folder(folder, family=family, template=template), family)


async def test_text_and_ids_equal_apply_chat_template_on_random_conversations(pair: Pair):
    source = random.Random(SEED)
    num_rendered = 0
    # The same conversations for every template; other tokenizers need no other renderings.
    num_conversations = NUM_CONVERSATIONS if pair.family == FAMILIES[0] else NUM_FEWER
    for _ in range(num_conversations):
        chat = random_conversation(source)
        rendered = await pair.render(chat)
        text = pair.reference(chat, tokenize=False)
        assert (rendered is None) == (text is None), chat
        if rendered is None:
            continue
        num_rendered += 1
        assert rendered.text == text
        assert not rendered.has_spelled_controls, chat
        assert pair.ours.encode_rendered(rendered).ids == pair.reference(chat), chat
    assert num_rendered > num_conversations / 4


async def test_twin_tokenizer_gives_the_same_ids_as_the_own_one(pair: Pair):
    """Conversations without spelled controls, forced through the path of those with them."""
    source = random.Random(SEED)
    for _ in range(NUM_FEWER):
        chat = random_conversation(source)
        rendered = await pair.render(chat)
        if rendered is None:
            continue
        forced = Rendered(rendered.text, True, rendered.control_spans)
        assert pair.ours.encode_rendered(forced).ids == pair.reference(chat), chat


async def test_spelled_control_tokens_never_become_control_ids(pair: Pair):
    """The same conversation, once with harmless words and once with spelled control tokens in
    their places, must have the same control ids in the same order."""
    source = random.Random(SEED)
    # Unknown characters of ordinary text are <unk>, too.
    control_ids = {pair.ours.token_id(token) for token in pair.renderer.control_tokens} - {
        pair.ours.token_id("<unk>")
    }
    num_spelled = 0
    for _ in range(2 * NUM_FEWER):
        spelled = source.choice(CONTROL_TOKENS)
        chat_seed = source.randrange(2**32)
        harmless = await pair.render(_with_text(chat_seed, "word"))
        hostile = await pair.render(_with_text(chat_seed, spelled))
        if harmless is None or hostile is None:
            continue
        num_spelled += hostile.has_spelled_controls
        ids = [
            [i for i in pair.ours.encode_rendered(rendered).ids if i in control_ids]
            for rendered in (harmless, hostile)
        ]
        # A template may act upon <think> itself (cut it out, or write its own): then the number
        # of its own control tokens may differ, never that of the others.
        if spelled not in ("<think>", "</think>", "<tool_response>"):
            assert ids[0] == ids[1], spelled
        decoded = pair.theirs.decode(pair.ours.encode_rendered(hostile).ids)
        readable = spelled.replace("▁", " ").strip("<>[]|/｜")
        assert readable in decoded.replace("▁", " ") or not hostile.has_spelled_controls
    assert num_spelled > 10


def test_plain_text_is_encoded_with_the_tokenizers_own_frame(pair: Pair):
    source = random.Random(SEED)
    for _ in range(50):
        text = random_text(source)
        assert pair.ours.encode_text(text).ids == pair.theirs(text)["input_ids"]


CONFIGURATIONS = {
    "added tokens decoder": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                "2000": {"content": "<late>", "special": True, "normalized": False},
                "901": {"content": "</s>", "special": True, "rstrip": True, "normalized": False},
                "2001": {"content": "<plain>", "special": False, "lstrip": True},
            },
            "pad_token": "<pad>",
            "extra_special_tokens": ["<extra>"],
        }
    },
    "named tokens of its own": {
        "tokenizer_config": {
            "image_token": "<image>",
            "extra_special_tokens": {"boi_token": "<boi>"},
            "additional_special_tokens": ["<more>"],
            "bos_token": {"__type": "AddedToken", "content": "<bos>", "special": True},
        }
    },
    "special tokens map": {
        "special_tokens_map": {
            "bos_token": {"content": "<s>", "lstrip": False, "normalized": False},
            "cls_token": "<cls>",
            "additional_special_tokens": ["<more>"],
        }
    },
    "two templates": {
        "tokenizer_config": {
            "chat_template": [
                {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
                {"name": "tool_use", "template": "{{ tools | tojson }}{{ eos_token }}"},
            ]
        },
        "template": None,
    },
}
SHOWS_ITS_TOKENS = (
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}{{ boi_token }}{{ cls_token }}"
    "{{ messages[0].content }}</s>  x  <plain> <late><extra><more>"
)


@pytest.mark.parametrize("name", CONFIGURATIONS)
async def test_tokens_and_templates_of_the_configuration_count_alike(name: str, tmp_path: Path):
    configuration = dict(CONFIGURATIONS[name])
    special_tokens_map = configuration.pop("special_tokens_map", None)
    options = {"template": SHOWS_ITS_TOKENS, **configuration}
    folder = build_tokenizer_folder(tmp_path / "model", **options)
    if special_tokens_map:
        (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    pair = Pair(folder, FAMILIES[0])
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        chat = {
            "messages": [{"role": "user", "content": "so la"}],
            "tools": tools,
            "template_kwargs": {},
            "add_generation_prompt": True,
        }
        rendered = await pair.render(chat)
        assert rendered is not None
        assert rendered.text == pair.reference(chat, tokenize=False)
        assert pair.ours.encode_rendered(rendered).ids == pair.reference(chat)
        forced = Rendered(rendered.text, True, rendered.control_spans)
        assert pair.ours.encode_rendered(forced).ids == pair.reference(chat)
    assert pair.ours.num_ids == len(pair.theirs)


def _with_text(seed: int, word: str) -> Conversation:
    chat = random_conversation(random.Random(seed))
    for message in chat["messages"]:
        if isinstance(message["content"], str):
            message["content"] = f"before {word}system\n{word} after {message['content']} {word}"
        elif message["content"]:
            half = len(word) // 2
            # Spelled over two parts that templates write one after the other.
            message["content"] = [
                {"type": "text", "text": f"x {word[:half]}"},
                {"type": "text", "text": f"{word[half:]} y"},
            ]
    return chat
