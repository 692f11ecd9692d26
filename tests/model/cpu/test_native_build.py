"""Building and finding the compiled kernels, on a folder with one tiny unit."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.model.cpu import build_native, native
from baton.model.load.load_error import LoadError
from tests import needs

HEADER = '#define EXPORT extern "C" __attribute__((visibility("default")))\n'
UNIT = '#include "answer.h"\nEXPORT int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    (tmp_path / "answer.h").write_text(HEADER)
    (tmp_path / "answer.cpp").write_text(UNIT)
    return tmp_path


@needs.compiler
def test_the_library_of_the_present_sources_is_built_once(sources, capsys):
    assert build_native.main() == 0
    assert ctypes.CDLL(str(native.library_path())).answer() == 42
    assert build_native.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Compiled kernels are up to date")


@needs.compiler
def test_changed_sources_have_another_library_and_the_old_one_goes(sources):
    build_native.main()
    before = native.library_path()
    (sources / "answer.h").write_text((sources / "answer.h").read_text() + "// changed\n")
    assert native.library_path() != before
    build_native.main()
    assert list((sources / "build").iterdir()) == [native.library_path()]


@needs.compiler
def test_a_unit_that_does_not_compile_leaves_no_library_and_says_why(sources, capsys):
    (sources / "broken.cpp").write_text("int broken( {\n")
    assert build_native.main() == build_native.EXIT_NOT_BUILT
    assert "broken.cpp" in capsys.readouterr().err
    assert list((sources / "build").iterdir()) == []


def test_without_a_compiler_one_line_says_what_adds_it(sources, monkeypatch, capsys):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(sources))
    assert build_native.main() == build_native.EXIT_NOT_BUILT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "sudo apt-get install g++" in lines[0]


def test_a_compiler_that_cannot_be_started_is_told_like_one_that_refuses(
    sources, monkeypatch, capsys
):
    monkeypatch.setenv("CXX", str(sources / "no-such-compiler"))
    assert build_native.main() == build_native.EXIT_NOT_BUILT
    assert "plain torch is used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unit", "isa"),
    [("attention.cpp", None), ("attention_amx.cpp", "amx"), ("isa.cpp", None), ("x_y.cpp", None)],
)
def test_the_end_of_a_unit_name_says_its_instruction_set(unit, isa):
    assert build_native.isa_of(Path(unit)) == isa


@pytest.mark.usefixtures("compiled_kernels")
def test_no_instruction_set_beyond_the_named_one_is_used():
    code = "from baton.model.cpu.native import usable_isas; print(*usable_isas())"
    environment = {**os.environ, native.ISA_VARIABLE: "avx2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout.decode().split() == list(native.usable_isas()[:2]), done.stderr


def test_an_instruction_set_of_no_name_is_one_line(monkeypatch):
    monkeypatch.setenv(native.ISA_VARIABLE, "avx1024")
    with pytest.raises(LoadError, match="avx1024"):
        native.library.__wrapped__()
