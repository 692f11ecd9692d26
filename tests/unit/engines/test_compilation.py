"""Where vLLM's steps are compiled, and what is said where they cannot be."""

import sysconfig
from pathlib import Path

import pytest

from baton.engines.vllm.ranks.compilation import is_compiled


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C++ compiler, and Python's header beside it."""
    program = tmp_path / "some-c++"
    program.touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CXX", str(program))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return program


@pytest.mark.parametrize(("choice", "compiled"), [("auto", True), ("on", True), ("off", False)])
def test_steps_are_compiled_unless_that_is_switched_off(
    compiler: Path, choice: str, compiled: bool
) -> None:
    assert is_compiled(choice, is_cpu=True) == compiled


@pytest.mark.parametrize("missing", ["some-c++", "Python.h"])
def test_what_is_missing_is_named(
    compiler: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    (compiler.parent / missing).unlink()
    assert not is_compiled("auto", is_cpu=True)
    assert missing in capsys.readouterr().err
    assert not is_compiled("off", is_cpu=True)
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match=f"^compile: there is no .*{missing[:6]}"):
        is_compiled("on", is_cpu=True)


def test_on_a_gpu_it_is_refused_by_name(compiler: Path) -> None:
    assert not is_compiled("auto", is_cpu=False)
    with pytest.raises(ValueError, match="on CPUs only"):
        is_compiled("on", is_cpu=False)
