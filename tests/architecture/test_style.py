"""House rules that a machine can check: sizes, names, and constructs that must not appear."""

import ast
import gc
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path
    for folder in ("baton", "services", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "wire/v1" not in path.as_posix()
]
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
# Beside each other in one folder; `__init__.py` does not count.
MAX_FILES = 21
SAYS_NOTHING = {"common", "utils", "helpers", "misc", "types", "manager"}
FORBIDDEN = {
    "pickle": r"^\s*(import|from)\s+(pickle|cloudpickle|shelve|marshal)\b",
    "torch.load": r"\btorch\.load\(",
    "yaml.load": r"\byaml\.load\(",
    "eval": r"(?<![.\w])(eval|exec)\(",
    "shell": r"shell=True",
    "multiprocessing": r"^\s*(import|from)\s+multiprocessing\b",
    "unfinished work": r"\b(TODO|FIXME|XXX|NotImplementedError)\b",
    "global statement": r"^\s*global\s",
}
# A component reads the Clock that it was given (decision 0023). `call_later` takes a delay.
LOOP_TIME = re.compile(r"loop(\(\))?\.time\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(text: str) -> ast.Module:
    """Without the collector: what it runs inside the parser of Python 3.11 can parse too, and then
    the parser's count of its depth is wrong (SystemError; python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """Allowed to clean up and raise again; only a process's root may swallow everything."""
    names = {"Exception", "BaseException"}
    return handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in names)


def test_a_folder_has_so_many_files_that_a_reader_sees_them_at_once() -> None:
    files = Counter(
        path.parent
        for folder in ("baton", "services", "bench", "loadtest", "tools", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py" and "wire/v1" not in path.as_posix()
    )
    assert {name_of(path): num for path, num in files.items() if num > MAX_FILES} == {}


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_file_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text()
    assert path.stem not in SAYS_NOTHING
    assert text.count("\n") <= MAX_FILE_LINES
    for rule, pattern in FORBIDDEN.items():
        assert not re.search(pattern, text, re.MULTILINE), rule
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert num_lines <= MAX_FUNCTION_LINES, f"{node.name}: {num_lines} lines"
        if isinstance(node, ast.ExceptHandler) and catches_everything(node):
            is_root = name_of(path) == "baton/runtime/process.py"
            assert is_root or isinstance(node.body[-1], ast.Raise), f"line {node.lineno}"


def test_every_component_reads_the_clock_that_it_was_given() -> None:
    assert [name_of(path) for path in PRODUCT if LOOP_TIME.search(path.read_text())] == []


@pytest.mark.parametrize("path", [p for p in PRODUCT if p.stat().st_size], ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path.read_text())), "no module docstring"
