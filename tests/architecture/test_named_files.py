"""Source files that pages, docstrings and comments name exist: as a path from the repository's
root, or as a short form from the folder of the file that names it or a folder above that. The name
of a test file may stand alone. Modules that code names in strings, to start them, exist as well.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_references import ROOT, SOURCES, URL

FOLDERS = ("baton", "bench", "services", "protos", "deploy", "loadtest", "tools", "tests")
# `picker.py`, `engine/step/engine.py`. Not `*.py`, `<name>.py` or a part of a longer path.
FILE = re.compile(
    r"(?<![\w/.<>*{}$~-])((?:[\w.-]+/)*[\w-]+\.(?:py|pyi|proto|cpp|h|lua|sh))\b(?![*{])"
)
# `services/gateway/request`, `baton/engine/step/`.
FOLDER = re.compile(rf"(?<![\w/.<>*{{}}$~-])((?:{'|'.join(FOLDERS)})/[\w/-]*\w)(?![\w.*{{<-])")
COMMENT_LINE = re.compile(r"^\s*(?://|#|--|\{\{-? ?/\*)(.*)", re.MULTILINE)
# "bench.engine.core_costs". Telemetry uses names that begin with "baton.": only its `*_main` count.
MODULE = re.compile(
    r"(?!.*\.(?:py|yaml|md|json)$)(?:(?:bench|services|loadtest|tests)(?:\.[a-z]\w*)+"
    r"|baton\.[\w.]+_(?:main|child))"
)
# The beginning of a string, or of a part of one, that may be such a name.
STRING = re.compile(r"""["'}](?:baton|bench|services|loadtest|tests)\.""")
# A program, a file of transformers, a header of Linux.
FOREIGN = {"llama.cpp", "generation/utils.py", "linux/mman.h"}
# Kinds of file, of which many packages have one.
KINDS = {"__init__.py", "__main__.py", "settings.py", "instruments.py"}


def python_prose(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def prose(path: Path) -> str:
    text = path.read_text()
    if not (FILE.search(text) or FOLDER.search(text)):
        return ""  # to find its comments and docstrings takes long
    if path.suffix == ".py":
        text = "\n".join(python_prose(text))
    elif path.suffix != ".md":
        text = "\n".join(COMMENT_LINE.findall(text))
    return URL.sub("", text)


@cache
def has_test(name: str) -> bool:
    return any((ROOT / "tests").rglob(name))


def is_there(name: str, folder: Path) -> bool:
    if name in FOREIGN | KINDS:
        return True
    above = [folder, *folder.parents]
    if any((start / name).exists() for start in above[: above.index(ROOT) + 1]):
        return True
    return name.rpartition("/")[2].startswith("test_") and has_test(name)


def missing(text: str, folder: Path) -> Iterator[str]:
    """The files and folders that `text`, written in `folder`, names and that do not exist."""
    named = FILE.findall(text) + FOLDER.findall(text)
    return (name for name in named if not is_there(name, folder))


def named_modules(source: str) -> Iterator[str]:
    """The modules that strings of Python code name, as `python -m` takes them."""
    if not STRING.search(source):
        return  # to parse it takes long
    constants = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    for value in constants:
        if isinstance(value, str) and MODULE.fullmatch(value):
            yield value


def is_module(name: str) -> bool:
    """Whether this is a module or a package of the repository, or a name in one."""
    path = ROOT.joinpath(*name.split("."))
    module_above = path.parent.with_suffix(".py")
    return path.is_dir() or path.with_suffix(".py").exists() or module_above.exists()


def test_every_module_that_a_string_names_is_there() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.suffix == ".py" and "_pb2" not in path.name and path != Path(__file__)
        for name in named_modules(path.read_text())
        if not is_module(name)
    }
    assert not found


def test_a_module_that_has_moved_is_found() -> None:
    (name,) = named_modules('run([python, "-m", "bench.core_costs", "baton.request_id"])')
    assert not is_module(name)
    assert is_module("bench.engine.core_costs")


def test_every_file_that_a_page_or_a_docstring_names_is_there() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if "_pb2" not in path.name and path != Path(__file__)
        for name in missing(prose(path), path.parent)
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "`answering.py` finds workers",
        "`services/gateway/answering.py`",
        "[step](../engine/step/no_such_step.py)",
        "in `services/gateway/no_such_room/`",
        "see `test_no_such_behaviour.py`",
    ],
)
def test_a_name_without_its_file_is_found(text: str) -> None:
    assert list(missing(text, ROOT / "services" / "gateway"))


@pytest.mark.parametrize(
    "text",
    [
        "`request/pipeline.py` is the order of a request",
        "`gateway/server.py` and services/router/pick/picker.py",
        "lies in `services/gateway/request`",
        "`test_references.py`",
        "as llama.cpp has it",
        "`services/*/settings.py`",
    ],
)
def test_a_name_with_its_file_is_left_alone(text: str) -> None:
    assert not list(missing(text, ROOT / "services" / "gateway"))
