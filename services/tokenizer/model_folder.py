"""The tokenizer side of a model's files, read as transformers reads its folder.

Only JSON and template text are read, never code. A tokenizer that needs its own code is refused.
Blocking; knows nothing of gRPC.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from baton.runtime.process import Misconfigured
from baton.wire.fingerprint import TEMPLATE_FOLDER
from baton.wire.model_files import (
    TOKENIZER_FILE,
    BadModelFiles,
    ModelFiles,
    read_model_files,
)
from baton.wire.pooling import Pooling, UnservedPooling, pooling_in

GENERATION_CONFIG_FILE = "generation_config.json"
DEFAULT_TEMPLATE = "default"
SPECIAL_TOKEN_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_REVISION_CHARS = 40


class UnusableModel(Misconfigured):
    """Files that cannot be served; the message is one line with the reason, and where they are."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's tokenizer-side description: one field for each fact that the files state.

    `added_tokens` are those that the configuration adds to tokenizer.json or changes, by id.
    `embedding_rows` is None where the configuration does not state it.
    """

    # Their folder, or whose they are, for messages.
    where: str
    name: str
    revision: str
    fingerprint: str
    special_tokens: dict[str, str]
    extra_special_tokens: tuple[AddedToken, ...]
    added_tokens: dict[int, AddedToken]
    templates: dict[str, str]
    chat_control_tokens: list[str] | None
    eos_token_ids: tuple[int, ...]
    embedding_rows: int | None
    named_tokens: dict[str, AddedToken] = field(default_factory=dict)
    # The content of the folder's file; None without one.
    generation_config: bytes | None = None
    # Set for an embedding model.
    pooling: Pooling | None = None
    # The content of tokenizer.json; None without one.
    tokenizer_json: bytes | None = None


def read_model_folder(path: Path, name: str) -> ModelFolder:
    """Describe the model in a folder. Raises UnusableModel."""
    if not path.is_dir():
        raise UnusableModel(f"{path} is not a folder")
    try:
        files = read_model_files(path)
    except (BadModelFiles, FileNotFoundError) as error:
        raise UnusableModel(str(error)) from error
    revision = path.name if _is_revision(path.name) else ""
    return model_folder_of(files, name, revision, str(path))


def model_folder_of(files: ModelFiles, name: str, revision: str, where: str) -> ModelFolder:
    """Describe a model by its files. Raises UnusableModel."""
    reader = _FilesReader(files.contents, where)
    config = reader.json("config.json")
    tokenizer_config = reader.json("tokenizer_config.json")
    if "auto_map" in tokenizer_config:
        raise UnusableModel(f"{where}: its tokenizer needs code of its own (auto_map), never run")
    added = _added_tokens(tokenizer_config)
    if "added_tokens_decoder" not in tokenizer_config:
        tokenizer_config = {**tokenizer_config, **reader.json("special_tokens_map.json")}
    named = _named_tokens(tokenizer_config)
    return ModelFolder(
        where=where,
        name=name,
        revision=revision,
        fingerprint=files.fingerprint,
        special_tokens={key: token.content for key, token in named.items()},
        extra_special_tokens=_extra_special_tokens(tokenizer_config),
        added_tokens=added,
        templates=_templates(reader, tokenizer_config),
        chat_control_tokens=tokenizer_config.get("chat_control_tokens"),
        eos_token_ids=_eos_token_ids(reader.json(GENERATION_CONFIG_FILE), config),
        embedding_rows=_text_config(config).get("vocab_size"),
        named_tokens=named,
        generation_config=files.contents.get(GENERATION_CONFIG_FILE),
        pooling=_pooling(files, where),
        tokenizer_json=files.contents.get(TOKENIZER_FILE),
    )


def build_tokenizer(folder: ModelFolder) -> Tokenizer:
    """The Rust tokenizer with the tokens that the folder's configuration adds to it.

    Raises UnusableModel.
    """
    if folder.tokenizer_json is None:
        reason = f"no {TOKENIZER_FILE}, and none can be made from its files"
        raise UnusableModel(f"{folder.where}: {reason}")
    tokenizer = parse_tokenizer(folder.tokenizer_json, folder.where)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    existing = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [
        token for _, token in sorted(folder.added_tokens.items()) if repr(token) not in existing
    ]
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    known |= {token.content for token in missing}
    for token in (*folder.named_tokens.values(), *folder.extra_special_tokens):
        if token.content not in known:
            known.add(token.content)
            missing.append(token)
    tokenizer.add_tokens(missing)
    return tokenizer


def parse_tokenizer(content: bytes, where: str) -> Tokenizer:
    """The tokenizer of a file. Some of what a file can say wrong is a panic of the library, whose
    class has no name to import and is no Exception."""
    try:
        return Tokenizer.from_buffer(content)
    except BaseException as error:
        if not (isinstance(error, ValueError) or type(error).__name__ == "PanicException"):
            raise
        raise UnusableModel(f"{where}: {TOKENIZER_FILE}: {str(error)[:200]}") from error


def _pooling(files: ModelFiles, where: str) -> Pooling | None:
    try:
        return pooling_in(files.contents.get)
    except UnservedPooling as error:
        raise UnusableModel(f"{where}: {error}") from error


class _FilesReader:
    """Reads a model's files by name."""

    def __init__(self, contents: Mapping[str, bytes], where: str) -> None:
        self._contents = contents
        self._where = where

    def text(self, name: str) -> str | None:
        try:
            content = self._contents.get(name)
            return None if content is None else content.decode()
        except UnicodeDecodeError as error:
            raise UnusableModel(f"{self._where}: {name}: {error}") from error

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file, empty without the file."""
        text = self.text(name)
        try:
            value = json.loads(text) if text is not None else {}
        except (ValueError, RecursionError) as error:
            raise UnusableModel(f"{self._where}: {name}: {error}") from error
        if not isinstance(value, dict):
            raise UnusableModel(f"{self._where}: {name}: not a JSON object")
        return value

    def templates(self, folder: str) -> dict[str, str]:
        names = [name for name in sorted(self._contents) if name.startswith(f"{folder}/")]
        texts = {name.partition("/")[2].removesuffix(".jinja"): self.text(name) for name in names}
        return {name: text for name, text in texts.items() if text is not None}


def _templates(reader: _FilesReader, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; files take precedence over the entry in the configuration."""
    templates = reader.templates(TEMPLATE_FOLDER)
    default = reader.text("chat_template.jinja")
    if default is not None:
        templates[DEFAULT_TEMPLATE] = default
    if templates:
        return templates
    entry = tokenizer_config.get("chat_template") or reader.json("chat_template.json").get(
        "chat_template"
    )
    if isinstance(entry, list):
        return {str(item["name"]): str(item["template"]) for item in entry}
    return {DEFAULT_TEMPLATE: str(entry)} if entry else {}


def _added_tokens(tokenizer_config: Mapping[str, Any]) -> dict[int, AddedToken]:
    entries = tokenizer_config.get("added_tokens_decoder") or {}
    return {int(index): _token(entry) for index, entry in entries.items()}


def _named_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Tokens that templates refer to by name; a model may have its own names (image_token)."""
    extra = tokenizer_config.get("extra_special_tokens")
    entries = {**tokenizer_config, **(extra if isinstance(extra, dict) else {})}
    own_names = [
        name
        for name, entry in entries.items()
        if name.endswith("_token") and name not in SPECIAL_TOKEN_NAMES and _is_token(entry)
    ]
    names = [*SPECIAL_TOKEN_NAMES, *own_names]
    return {name: _token(entries[name]) for name in names if _is_token(entries.get(name))}


def _extra_special_tokens(tokenizer_config: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    for name in ("extra_special_tokens", "additional_special_tokens"):
        entries = tokenizer_config.get(name)
        if entries and isinstance(entries, list):
            return tuple(map(_token, entries))
    return ()


def _is_token(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and "content" in entry)


def _token(entry: Any) -> AddedToken:
    if isinstance(entry, str):
        return AddedToken(entry, special=True)
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    given = {flag: bool(entry[flag]) for flag in flags if flag in entry}
    return AddedToken(entry["content"], special=bool(entry.get("special", True)), **given)


def _eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    for config in configs:
        for source in (config, _text_config(config)):
            value = source.get("eos_token_id")
            if isinstance(value, int):
                return (value,)
            if isinstance(value, list) and value:
                return tuple(value)
    return ()


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _is_revision(name: str) -> bool:
    return len(name) == _REVISION_CHARS and all(char in "0123456789abcdef" for char in name)
