"""The tokenizer side of a model folder, read as transformers reads it.

Only JSON and template text are read, never code. A tokenizer that needs its own code is refused,
and so is a file outside the folder. Blocking; knows nothing of gRPC.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from baton.runtime.process import Misconfigured
from baton.wire.fingerprint import model_fingerprint
from baton.wire.pooling import Pooling, UnservedPooling, read_pooling

TOKENIZER_FILE = "tokenizer.json"
GENERATION_CONFIG_FILE = "generation_config.json"
DEFAULT_TEMPLATE = "default"
MAX_FILE_BYTES = 256 * 1024 * 1024
SPECIAL_TOKEN_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_REVISION_CHARS = 40


class UnusableModel(Misconfigured):
    """A folder that cannot be served; the message is one line with its name and the reason."""


@dataclass(frozen=True)
class ModelFolder:
    """A model's tokenizer-side description: one field for each fact that the files state.

    `added_tokens` are those that the configuration adds to tokenizer.json or changes, by id.
    `embedding_rows` is None where the configuration does not state it.
    """

    path: Path
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

    @property
    def has_tokenizer_file(self) -> bool:
        return (self.path / TOKENIZER_FILE).is_file()


def read_model_folder(path: Path, name: str) -> ModelFolder:
    """Read the folder's configuration. Raises UnusableModel."""
    reader = _FolderReader(path)
    config = reader.json("config.json")
    tokenizer_config = reader.json("tokenizer_config.json")
    if "auto_map" in tokenizer_config:
        raise UnusableModel(f"{path}: its tokenizer needs code of its own (auto_map), never run")
    added = _added_tokens(tokenizer_config)
    if "added_tokens_decoder" not in tokenizer_config:
        tokenizer_config = {**tokenizer_config, **reader.json("special_tokens_map.json")}
    named = _named_tokens(tokenizer_config)
    try:
        fingerprint = model_fingerprint(path)
    except FileNotFoundError as error:
        raise UnusableModel(str(error)) from error
    generation_config = reader.text(GENERATION_CONFIG_FILE)
    return ModelFolder(
        path=path,
        name=name,
        revision=path.name if _is_revision(path.name) else "",
        fingerprint=fingerprint,
        special_tokens={key: token.content for key, token in named.items()},
        extra_special_tokens=_extra_special_tokens(tokenizer_config),
        added_tokens=added,
        templates=_templates(reader, tokenizer_config),
        chat_control_tokens=tokenizer_config.get("chat_control_tokens"),
        eos_token_ids=_eos_token_ids(reader.json(GENERATION_CONFIG_FILE), config),
        embedding_rows=_text_config(config).get("vocab_size"),
        named_tokens=named,
        generation_config=generation_config.encode() if generation_config is not None else None,
        pooling=_pooling(path),
    )


def build_tokenizer(folder: ModelFolder, tokenizer_file: Path) -> Tokenizer:
    """The Rust tokenizer with the tokens that the folder's configuration adds to it.

    Raises UnusableModel.
    """
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_file.read_bytes())
    except (OSError, ValueError) as error:
        raise UnusableModel(f"{tokenizer_file}: {str(error)[:200]}") from error
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


def _pooling(path: Path) -> Pooling | None:
    try:
        return read_pooling(path)
    except UnservedPooling as error:
        raise UnusableModel(f"{path}: {error}") from error


class _FolderReader:
    """Reads files that lie in one folder, or in the blob store of the same download."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UnusableModel(f"{folder} is not a folder")
        self.folder = folder
        self._roots = [folder.resolve()]
        if folder.parent.name == "snapshots":
            self._roots.append(folder.resolve().parent.parent / "blobs")
        for name in (TOKENIZER_FILE, "chat_template.jinja"):
            self.path(name)

    def path(self, name: str) -> Path | None:
        """The path of a file; None without it. Raises UnusableModel when it lies elsewhere."""
        path = self.folder / name
        if not path.is_file():
            return None
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in self._roots):
            raise UnusableModel(f"{path} is a link that leads out of its folder")
        if real.stat().st_size > MAX_FILE_BYTES:
            raise UnusableModel(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        return path

    def text(self, name: str) -> str | None:
        path = self.path(name)
        try:
            return path.read_text(encoding="utf-8") if path else None
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableModel(f"{path}: {error}") from error

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file, empty without the file."""
        text = self.text(name)
        try:
            value = json.loads(text) if text is not None else {}
        except (ValueError, RecursionError) as error:
            raise UnusableModel(f"{self.folder / name}: {error}") from error
        if not isinstance(value, dict):
            raise UnusableModel(f"{self.folder / name}: not a JSON object")
        return value

    def templates(self, folder: str) -> dict[str, str]:
        names = sorted(path.name for path in (self.folder / folder).glob("*.jinja"))
        texts = {name.removesuffix(".jinja"): self.text(f"{folder}/{name}") for name in names}
        return {name: text for name, text in texts.items() if text is not None}


def _templates(reader: _FolderReader, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; files take precedence over the entry in the configuration."""
    templates = reader.templates("additional_chat_templates")
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
