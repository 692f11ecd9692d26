"""Builds model folders with a small trained tokenizer, for tests of everything that tokenizes.

Three families as real models have them: byte-level BPE with a pre-tokenizing expression, BPE over
"▁" with byte fallback and no pre-tokenizer splitting, and Unigram with a normalizer. The weights
file is a valid empty safetensors file; nothing here needs torch.
"""

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

Family = Literal["byte_level", "byte_fallback", "unigram"]
FAMILIES: tuple[Family, ...] = ("byte_level", "byte_fallback", "unigram")
BOS, EOS, UNK = "<s>", "</s>", "<unk>"
# Control tokens of all templates under tests/; the second list is added but not special.
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|/tool|>",
    "<|end|>",
)  # fmt: skip
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
CONTROL_TOKENS = (BOS, EOS, UNK, *SPECIAL, *ADDED)
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VOCAB_SIZE = 900
# An empty safetensors file: the length of an empty JSON header, and that header.
_EMPTY_SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


def build_tokenizer_folder(
    folder: Path,
    *,
    family: Family = "byte_level",
    template: str | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a model folder that the tokenizer service and transformers load alike."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(family)
    tokenizer.save(str(folder / "tokenizer.json"))
    base = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
    }
    _write(folder / "tokenizer_config.json", {**base, **(tokenizer_config or {})})
    eos_token_id = tokenizer.token_to_id(EOS)
    _write(folder / "config.json", {"eos_token_id": eos_token_id, **(config or {})})
    (folder / "model.safetensors").write_bytes(_EMPTY_SAFETENSORS)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def train(family: Family) -> Tokenizer:
    """A tokenizer of the family with BOS, EOS, SPECIAL and ADDED; the same every time."""
    make = {"byte_level": _byte_level, "byte_fallback": _byte_fallback, "unigram": _unigram}
    tokenizer = make[family]()
    tokenizer.add_special_tokens([*map(_special, (BOS, EOS, *SPECIAL))])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)


def _byte_fallback() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=UNK, byte_fallback=True, fuse_unk=True))
    splitting = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.pre_tokenizer = splitting
    pieces = [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = _trained(tokenizer, trainers.BpeTrainer, special_tokens=pieces)
    # The trainer registers them as added tokens, which byte pieces are not in real models.
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = description["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(description))
    # As Llama-2 has it: the whole text between control tokens is one word.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    pieces = [UNK, BOS, EOS, *SPECIAL[:4]]
    return _trained(
        tokenizer,
        trainers.UnigramTrainer,
        special_tokens=pieces,
        unk_token=UNK,
        initial_alphabet=[*string.ascii_letters, *string.digits, *string.punctuation],
    )


def _trained(tokenizer: Tokenizer, trainer: Any, **options: Any) -> Tokenizer:
    options = {"vocab_size": _VOCAB_SIZE, "show_progress": False, **options}
    tokenizer.train_from_iterator(_corpus(), trainer(**options))
    return tokenizer


def _corpus() -> Sequence[str]:
    source = random.Random(7)
    syllables = ["ta", "re", "mi", "so", "la", "ken", "dor", "ple", "qu", "ing", "er", "us", "x"]
    words = ["".join(source.choices(syllables, k=source.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(source.choices(words, k=12)) + "." for _ in range(400)]
    code = ["def f(x):\n    return x + 1\n", '{"name": "f", "arguments": {"x": 1}}', "a < b > c"]
    tags = ["<|im_start|>user\n", "<|im_end|>\n", "[INST] [/INST]", "</s>", "<think>"]
    return (
        lines
        + 20 * code
        + 20 * tags
        + 5 * ["日本語のテキスト、さらに。", "naïve café — “quotes” 😀"]
    )


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
