"""Each typical mistake gets the one line that says what to do, as docs/mistakes.md has it."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.cli import __main__ as cli
from baton.localstack.model_folder import FolderRefused, check
from baton.wire.failures import AuthenticationFailed, InvalidRequest
from services.gateway.http.refusals import no_such_path
from services.gateway.openai import chat
from services.gateway.tenants.auth import bearer_key
from tests.kit import mistakes
from tests.kit.mistakes import Mistake

MIB = 2**20


def named(rows: tuple[Mistake, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mistake", rows, ids=[row.typed for row in rows])


def test_the_page_has_these_mistakes_and_there_are_at_least_forty() -> None:
    assert mistakes.PAGE.read_text() == "\n".join(mistakes.page()) + "\n", (
        "run: python -m tests.kit.mistakes"
    )
    assert sum(map(len, mistakes.SECTIONS.values())) >= 40


@named(mistakes.COMMANDS)
def test_a_mistyped_command_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", shlex.split(mistake.typed))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.err.replace(str(tmp_path / "home"), "HOME") == f"{mistake.now}\n"
    assert told.out == ""


def write(folder: Path, **files: bytes | dict[str, object]) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "-").replace("_json", ".json").replace(
            "_st", ".safetensors"
        )
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def weights(num_bytes: int, num_there: int) -> bytes:
    """A file of safetensors with one tensor, of which `num_there` bytes are there."""
    tensor = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"x": tensor}).encode()
    header += b" " * (4096 - 8 - len(header))
    return len(header).to_bytes(8, "little") + header + bytes(num_there)


INDEX = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
# What makes a whole folder one with this mistake.
BREAKS: dict[str, Callable[[Path], object]] = {
    "mamba": lambda folder: write(folder, config_json={"model_type": "mamba"}),
    "bert": lambda folder: write(folder, config_json={"model_type": "bert"}),
    "t5": lambda folder: write(
        folder, config_json={"model_type": "t5", "is_encoder_decoder": True}
    ),
    "gptq": lambda folder: write(
        folder,
        config_json={"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
    ),
    "a type that transformers does not know": lambda folder: write(
        folder, config_json={"model_type": "llama7"}
    ),
    "no model_type": lambda folder: write(folder, config_json={}),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "half a safetensors file": lambda folder: write(
        folder, model_st=weights(2 * MIB - 4096, MIB - 4096)
    ),
    "a missing shard": lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps(INDEX)
    ),
    "config.json that is no JSON": lambda folder: write(folder, config_json=b"not json"),
}


@named(mistakes.FOLDERS)
def test_a_folder_that_cannot_be_served_is_refused_by_its_small_files(
    mistake: Mistake, tmp_path: Path
) -> None:
    write(
        tmp_path, config_json={"model_type": "llama"}, tokenizer_json={}, model_st=weights(64, 64)
    )
    check("m", tmp_path)
    BREAKS[mistake.typed](tmp_path)
    with pytest.raises(FolderRefused) as caught:
        check("m", tmp_path)
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == f"model m: {mistake.now}"


def test_another_engine_may_serve_what_ours_does_not(tmp_path: Path) -> None:
    write(
        tmp_path, config_json={"model_type": "mamba"}, tokenizer_json={}, model_st=weights(64, 64)
    )
    check("m", tmp_path, engine="vllm")


@named(mistakes.FIELDS)
def test_a_wrong_field_is_named_with_the_value_and_the_rule(mistake: Mistake) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "m", "messages": messages, **json.loads(f"{{{mistake.typed}}}")}
    with pytest.raises(InvalidRequest) as caught:
        chat.parse(json.dumps(body).encode())
    assert caught.value.message == mistake.now


@named(mistakes.HEADERS)
def test_a_wrong_header_is_answered_with_the_right_one(mistake: Mistake) -> None:
    _, _, value = mistake.typed.partition(": ")
    with pytest.raises(AuthenticationFailed) as caught:
        bearer_key(value)
    assert caught.value.message == mistake.now


@named(mistakes.PATHS)
def test_a_path_that_nothing_answers_is_told_the_nearest_one(mistake: Mistake) -> None:
    assert no_such_path(mistake.typed).message == mistake.now
