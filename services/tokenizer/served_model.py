"""A loaded model: tokenizer, renderer, artifact.

Parsing files blocks and runs in a thread. A function that is passed in makes the renderer, so that
tests can render in process.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from baton.wire.model_files import TOKENIZER_FILE
from services.tokenizer.model_folder import (
    GENERATION_CONFIG_FILE,
    ModelFolder,
    UnusableModel,
    build_tokenizer,
)
from services.tokenizer.prompt_tokenizer import PromptTokenizer, added_tokens
from services.tokenizer.render_messages import TemplateSetup
from services.tokenizer.syntaxes import NOTHING_SAID, Syntaxes, names_pair
from services.tokenizer.template import Renderer, TemplateRefused

MakeRenderer = Callable[[TemplateSetup], Awaitable[Renderer]]
FORMAT = 1
DETOKENIZER_FILE = "detokenizer.json"
CHUNK_BYTES = 512 * 1024


class RunInThread(Protocol):
    """Runs a blocking function outside the event loop (in the simulation: at once)."""

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any: ...


@dataclass(frozen=True)
class Artifact:
    """The tokenizer artifact: the files of one model with which gateways turn ids into text.

    Format: a msgpack map {file name: bytes}. `tokenizer.json` is the model's tokenizer with all
    tokens that its configuration adds. `detokenizer.json` has the values that `tokenizer.json`
    lacks: {"format": 1, "model_fp", "vocab_size", "eos_token_ids", "special_token_ids",
    "has_chat_template", "tool_syntax", "reasoning_syntax", "pooling", "has_pair_template"}
    (see syntaxes.py and baton/wire/pooling.py).
    `generation_config.json` is the folder's own, if it has one. `digest` is the sha256 of the
    whole, in hex.
    """

    data: bytes
    digest: str

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


def build_artifact(
    folder: ModelFolder,
    tokenizer: PromptTokenizer,
    eos_token_ids: tuple[int, ...],
    syntaxes: Syntaxes,
) -> Artifact:
    """Build a model's artifact; equal inputs give equal bytes."""
    special = [token for token, is_special in tokenizer.added_tokens() if is_special]
    description = {
        "format": FORMAT,
        "model_fp": folder.fingerprint,
        "vocab_size": tokenizer.num_ids,
        "eos_token_ids": list(eos_token_ids),
        "special_token_ids": [tokenizer.token_id(token) for token in special],
        "has_chat_template": bool(folder.templates),
        "tool_syntax": syntaxes.tools,
        "reasoning_syntax": syntaxes.reasoning,
        "pooling": folder.pooling,
        "has_pair_template": names_pair(folder.templates.values()),
    }
    files = {
        DETOKENIZER_FILE: msgspec.json.encode(description),
        TOKENIZER_FILE: tokenizer.to_json().encode(),
    }
    if folder.generation_config is not None:
        files[GENERATION_CONFIG_FILE] = folder.generation_config
    data = msgspec.msgpack.encode(files, order="deterministic")
    return Artifact(data, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class ServedModel:
    """One loaded model.

    `renderer` is None for a model without a chat template. All ids are below `vocab_size`.
    """

    folder: ModelFolder
    tokenizer: PromptTokenizer
    renderer: Renderer | None
    artifact: Artifact
    vocab_size: int
    eos_token_ids: tuple[int, ...]


async def load_model(
    folder: ModelFolder,
    make_renderer: MakeRenderer,
    run_in_thread: RunInThread,
    random_bytes: Callable[[int], bytes],
    syntaxes: Syntaxes = NOTHING_SAID,
) -> ServedModel:
    """Load a model. `syntaxes` that are named stand in place of those of its templates. Raises
    UnusableModel."""
    own = await run_in_thread(build_tokenizer, folder)
    renderer, control_tokens = None, [token for token, special in added_tokens(own) if special]
    if folder.templates:
        setup = TemplateSetup(
            folder.templates, folder.special_tokens, added_tokens(own), folder.chat_control_tokens
        )
        try:
            renderer = await make_renderer(setup)
        except TemplateRefused as error:
            message = f"{folder.where}: its chat template is refused: {error}"
            raise UnusableModel(message) from error
        control_tokens = renderer.control_tokens
    tokenizer = await run_in_thread(PromptTokenizer, own, control_tokens, random_bytes)
    eos_token_ids = folder.eos_token_ids or _own_eos(folder, tokenizer)
    found = syntaxes.found(folder.templates.values(), dict(added_tokens(own)))
    artifact = await run_in_thread(build_artifact, folder, tokenizer, eos_token_ids, found)
    vocab_size = min(tokenizer.num_ids, folder.embedding_rows or tokenizer.num_ids)
    # The artifact has the file, and no other part needs it.
    folder = replace(folder, tokenizer_json=None)
    return ServedModel(folder, tokenizer, renderer, artifact, vocab_size, eos_token_ids)


def _own_eos(folder: ModelFolder, tokenizer: PromptTokenizer) -> tuple[int, ...]:
    token_id = tokenizer.token_id(folder.special_tokens.get("eos_token", ""))
    return () if token_id is None else (token_id,)
