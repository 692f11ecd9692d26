"""Makes the models that benchmarks run: random weights and a tokenizer trained here, no download.

Each is made once, into the cache folder, and is the same on every machine with the same Python.
"""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.model_shape import ModelShape

CACHE_VARIABLE = "BATON_BENCH_CACHE"
MAX_MODEL_LEN = 8192
SHAPES = {
    # For tests: made and run in seconds.
    "nano": ModelShape(2048, 64, 2, 4, 2, 16, 128),
    # 14 M weights: what a step costs besides the model.
    "tiny": ModelShape(16384, 256, 8, 8, 4, 64, 1024),
    # 474 M weights, the shape of Qwen3-0.6B with a smaller vocabulary.
    "small": ModelShape(32768, 1024, 28, 16, 8, 128, 3072),
}
_CORPUS_CHARS = 24_000_000
_CORPUS_CHARS_PER_TOKEN = 1500
# Random weights as they are make logits so close that greedy tokens would hang on rounding.
_WEIGHT_SCALE = 1.5
_END = "<|im_end|>"
_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", _END]
_CHAT_TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)


def cache_folder() -> Path:
    """`$BATON_BENCH_CACHE`, or a folder of the user's cache."""
    default = Path.home() / ".cache" / "baton-bench"
    return Path(os.environ.get(CACHE_VARIABLE, default))


def ensure_model(name: str, cache: Path) -> Path:
    """The folder of a model of SHAPES; made first when it is not there."""
    folder = cache / "models" / name
    if not (folder / "config.json").is_file():
        making = folder.with_name(f"{name}.{os.getpid()}.tmp")
        make_model(SHAPES[name], making)
        if folder.is_dir():
            shutil.rmtree(folder)
        making.rename(folder)
    return folder


def make_model(shape: ModelShape, folder: Path) -> None:
    """Write weights, configuration and tokenizer of one model."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True)
    tokenizer = _train_tokenizer(shape.vocab_size)
    tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes = asdict(shape)
    sizes["num_hidden_layers"] = sizes.pop("num_layers")
    sizes["num_attention_heads"] = sizes.pop("num_heads")
    sizes["num_key_value_heads"] = sizes.pop("num_kv_heads")
    config = Qwen3Config(
        **sizes,
        **ends,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        bos_token_id=None,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(config)
    model = model.to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(_WEIGHT_SCALE)
    model.generation_config.update(**ends, do_sample=False)
    model.save_pretrained(folder)


def _train_tokenizer(vocab_size: int) -> Any:
    """Byte-level BPE over the sources of Python's own library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    max_chars = min(_CORPUS_CHARS, vocab_size * _CORPUS_CHARS_PER_TOKEN)
    tokenizer.train_from_iterator(_library_sources(max_chars), trainer)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_SPECIAL_TOKENS[0],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=MAX_MODEL_LEN,
        clean_up_tokenization_spaces=False,
    )


def _library_sources(max_chars: int) -> Iterator[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    num_chars = 0
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.parts or num_chars > max_chars:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        num_chars += len(text)
        yield text
