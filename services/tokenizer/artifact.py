"""The tokenizer artifact: the files of one model with which gateways turn ids into text.

Format: a msgpack map {file name: bytes}. `tokenizer.json` is the model's tokenizer with all tokens
that its configuration adds. `detokenizer.json` has the values that `tokenizer.json` lacks:
{"format": 1, "model_fp", "vocab_size", "eos_token_ids", "special_token_ids"}.
`generation_config.json` is the folder's own, if it has one. The digest is the sha256 of the whole,
in hex.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from services.tokenizer.model_folder import GENERATION_CONFIG_FILE, TOKENIZER_FILE, ModelFolder
from services.tokenizer.prompt_tokenizer import PromptTokenizer

FORMAT = 1
DETOKENIZER_FILE = "detokenizer.json"
CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True)
class Artifact:
    """The bytes of an artifact; `digest` is their sha256 in hex."""

    data: bytes
    digest: str

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), CHUNK_BYTES):
            yield self.data[start : start + CHUNK_BYTES]


def build_artifact(
    folder: ModelFolder, tokenizer: PromptTokenizer, eos_token_ids: tuple[int, ...]
) -> Artifact:
    """Build a model's artifact; equal inputs give equal bytes."""
    special = [token for token, is_special in tokenizer.added_tokens() if is_special]
    description = {
        "format": FORMAT,
        "model_fp": folder.fingerprint,
        "vocab_size": tokenizer.num_ids,
        "eos_token_ids": list(eos_token_ids),
        "special_token_ids": [tokenizer.token_id(token) for token in special],
    }
    files = {
        DETOKENIZER_FILE: msgspec.json.encode(description),
        TOKENIZER_FILE: tokenizer.to_json().encode(),
    }
    if folder.generation_config is not None:
        files[GENERATION_CONFIG_FILE] = folder.generation_config
    data = msgspec.msgpack.encode(files, order="deterministic")
    return Artifact(data, hashlib.sha256(data).hexdigest())
