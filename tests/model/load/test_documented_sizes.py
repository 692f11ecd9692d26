"""The calls of `baton size` that pages show, with configurations in the shapes that they name."""

import json
import sys
from pathlib import Path

import pytest

from baton.cli.__main__ import main
from tests.kit.documented import Statement, statements

SIZES = [
    each
    for each in statements()
    if each.words[:2] in {("baton", "size"), (".venv/bin/baton", "size")}
]
# The files themselves belong to others.
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN_32B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936,
    "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "head_dim": 128,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 40960,
    "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = {
    "config.json": LLAMA_8B,
    "llama-3.1-8b/config.json": LLAMA_8B,
    "qwen3-32b/config.json": QWEN_32B,
}


@pytest.mark.parametrize("statement", SIZES, ids=lambda each: f"{each.page}: {each.text[:40]}")
def test_what_a_page_asks_to_be_sized_fits(
    statement: Statement,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, config in CONFIGS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["baton", *statement.words[1:]])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 0, told.out + told.err
    assert "Memory of a worker" in told.out
