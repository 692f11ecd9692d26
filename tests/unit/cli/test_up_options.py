"""`baton` refuses what cannot run in one line, before anything starts."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli import __main__ as cli
from baton.cli import up_options


def baton(monkeypatch: pytest.MonkeyPatch, home: Path, *arguments: str) -> int | str | None:
    monkeypatch.setenv("BATON_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["baton", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "abc"], "port 'abc'"),
        (["--port", "65536"], "port '65536'"),
        (["--port", "-1"], "port '-1'"),
        (["--decode", "0"], "--decode 0"),
        (["--threads", "0"], "--threads 0"),
        (["--tp", "0"], "--tp 0"),
        (["--tp", "2"], "--tp 2: for --engine vllm only"),
        (["--prefill-tp", "2"], "--prefill-tp 2: for --engine vllm only"),
        (["--ep"], "--ep: needs --tp 2 or more"),
        (["--kv-memory", "much"], "--kv-memory 'much'"),
        (
            ["--replicas", "redis=2"],
            "'redis=2': the service must be one of gateway, quota, tokenizer, router",
        ),
        (["--gpus", "0,1"], "--gpus 0,1: 3 workers need 3 GPUs; name as many"),
        (["--gpus", "0,0,1"], "--gpus 0,0,1: one is named twice"),
        (["--replicas", "gateway=0"], "'gateway=0': say gateway=1 to 9"),
        (["--replicas", "quota"], "'quota': say quota=1 to 9"),
        (["--alias", "foo"], "PUBLIC=MODEL"),
        (["--alias", "foo=nosuch"], "serves small, not 'nosuch'"),
        (["--lora", "poems=/adapters/poems"], "--lora is for --engine vllm and one --model"),
    ],
)
def test_an_option_that_cannot_work_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    options: list[str],
    words: str,
) -> None:
    arguments = ["up", "--model", model, *(["--port", "0"] if "--port" not in options else [])]
    assert baton(monkeypatch, tmp_path / "home", *arguments, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_bad_port_in_the_environment_concerns_only_the_command_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_PORT", "abc")
    assert baton(monkeypatch, tmp_path, "status") == 2
    assert "no stack runs" in capsys.readouterr().err


def test_trace_where_nothing_has_run_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baton(monkeypatch, tmp_path / "home", "trace", "req_1") == 1
    assert "no stack has run" in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_down_leaves_a_stranger_with_a_supervisors_old_pid_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        state = f'{{"supervisor_pid": {stranger.pid}, "base_url": "http://127.0.0.1:1/v1"}}'
        (tmp_path / "state.json").write_text(state)
        assert baton(monkeypatch, tmp_path, "down") == 2
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_a_budget_in_digits_of_another_script_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("keys", "create", "--tenant", "a", "--budget", "\u00b2/day")
    assert baton(monkeypatch, tmp_path, *arguments) == 2
    assert "say N/day or N/month" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("up",), ("keys", "create", "--tenant", "a")])
def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    (tmp_path / "file").write_text("")
    assert baton(monkeypatch, tmp_path / "file" / "home", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "file" in line


@pytest.mark.parametrize("limit", ["--rpm", "--tpm", "--concurrency"])
def test_a_limit_below_0_is_one_line_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    assert baton(monkeypatch, tmp_path, "keys", "create", "--tenant", "a", limit, "-3") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"baton: {limit} -3: must be 0 or more; 0 = unlimited"


@pytest.mark.parametrize("priority", ["-1", "256"])
def test_a_priority_that_no_key_can_have_is_one_line_that_names_the_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    priority: str,
) -> None:
    wanted = ("keys", "create", "--tenant", "a", "--priority", priority)
    assert baton(monkeypatch, tmp_path, *wanted) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"baton: --priority {priority}: must be 0 to 255"


def test_a_key_has_the_priority_and_the_weight_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("keys", "create", "--tenant", "a", "--priority", "9", "--weight", "2.5")
    assert baton(monkeypatch, tmp_path, *wanted) == 0
    capsys.readouterr()
    assert baton(monkeypatch, tmp_path, "keys", "list") == 0
    assert "priority=9  weight=2.5" in capsys.readouterr().out


@pytest.mark.parametrize("weight", ["0", "nan", "101"])
def test_a_weight_that_no_key_can_have_is_one_line_that_names_the_option(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    weight: str,
) -> None:
    wanted = ("keys", "create", "--tenant", "a", "--weight", weight)
    assert baton(monkeypatch, tmp_path, *wanted) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"baton: --weight {weight}: must be 0.01 to 100"


def test_a_budget_may_be_hard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("keys", "create", "--tenant", "a", "--hard-budget")
    assert baton(monkeypatch, tmp_path, *wanted) != 0
    assert "a hard budget needs" in capsys.readouterr().err
    assert baton(monkeypatch, tmp_path, *wanted, "--budget", "5000/day") == 0
    capsys.readouterr()
    assert baton(monkeypatch, tmp_path, "keys", "list") == 0
    assert "budget=5000/day, hard" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "served", "names"),
    [
        ([], ["m"], ["gpt-4o=m", "gpt-4o-mini=m", "gpt-3.5-turbo=m"]),
        (["--no-openai-names"], ["m"], []),
        (
            ["--alias", "gpt-4o=n"],
            ["m", "n"],
            ["gpt-4o=n", "gpt-4o-mini=m", "gpt-3.5-turbo=m"],
        ),
        ([], ["gpt-4o"], ["gpt-4o-mini=gpt-4o", "gpt-3.5-turbo=gpt-4o"]),
    ],
)
def test_the_first_model_has_openais_names_unless_they_are_taken(
    options: list[str], served: list[str], names: list[str]
) -> None:
    parser = argparse.ArgumentParser()
    up_options.add_options(parser)
    assert list(up_options.aliases(parser.parse_args(options), served)) == names
