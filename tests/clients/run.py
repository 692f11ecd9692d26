"""Runs the programs of clients against one stack and prints a table: python run.py FOLDER [NAME...]

FOLDER has the clients' environments (tools/clients.sh). The stack is the one that BASE_URL and
API_KEY name, or without them one of its own. The exit status is 1 if a path failed, or a client
did not run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
ENVIRONMENTS = HERE / "environments"
PAGE = HERE.parents[1] / "docs" / "clients.md"
SHOWN_HOST = "http://127.0.0.1:8080"
PROGRAM_TIMEOUT_S = 900
# By program; the packages whose versions are shown, the client's own first.
PACKAGES = {
    "openai_paths.py": ["openai"],
    "anthropic_paths.py": ["anthropic"],
    "langchain_paths.py": ["langchain-openai", "langchain-anthropic"],
    "llamaindex_paths.py": ["llama-index-llms-openai", "llama-index-llms-openai-like"],
    "litellm_paths.py": ["litellm"],
    "instructor_paths.py": ["instructor"],
    "agents_paths.py": ["openai-agents"],
    "lm_eval_paths.py": ["lm-eval"],
    "openai_node.mjs": ["openai"],
    "ai_node.mjs": ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible"],
    "anthropic_node.mjs": ["@anthropic-ai/sdk"],
}


class Row(NamedTuple):
    """An interface of a client, with its paths and what failed."""

    client: str
    interface: str
    paths: list[str]
    errors: list[str]


def main(folder: Path, names: list[str]) -> int:
    programs = [name for name in PACKAGES if not names or name.rpartition("_")[0] in names]
    with stack(folder) as address:
        rows = [row for program in programs for row in rows_of(program, folder, address)]
        rows += [example_row(text, folder, address) for text in examples() if not names]
    print_table(rows)
    num_failed = sum(len(row.errors) for row in rows)
    print(f"{sum(len(row.paths) for row in rows)} paths, {num_failed} failed")
    return 1 if num_failed else 0


@contextmanager
def stack(folder: Path) -> Iterator[dict[str, str]]:
    """The address and key of a stack."""
    if "BASE_URL" in os.environ:
        yield {name: os.environ[name] for name in ("BASE_URL", "API_KEY")}
        return
    home = (folder / "stack").absolute()
    baton = [sys.executable, "-m", "baton.cli"]
    environment = os.environ | {"BATON_HOME": str(home)}
    subprocess.run([*baton, "up", "--detach", "--port", "0"], env=environment, check=True)
    try:
        lines = (home / "dev.env").read_text().splitlines()
        yield dict(line.split("=", 1) for line in lines if "=" in line)
    finally:
        subprocess.run([*baton, "down"], env=environment, check=True)


def rows_of(program: str, folder: Path, address: dict[str, str]) -> list[Row]:
    """Run a program; its rows, and one more if it did not come to its end."""
    # For what only Baton's own environment can compute.
    environment = os.environ | address | {"REFERENCE_PYTHON": sys.executable}
    client = client_of(program)
    try:
        ended = subprocess.run(
            command(program, folder), env=environment, capture_output=True, text=True,
            timeout=PROGRAM_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Row(client, "", [], [f"did not run: {error}"])]
    rows: dict[str, Row] = {}
    for line in ended.stdout.splitlines():
        if line.startswith('{"interface"'):
            told = json.loads(line)
            row = rows.setdefault(told["interface"], Row(client, told["interface"], [], []))
            row.paths.append(told["path"])
            row.errors.extend([f"{told['path']}: {told['error']}"] if told["error"] else [])
    if ended.returncode or not rows:
        last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return [*rows.values(), Row(client, "", [], [f"ended early: {last}"])]
    return list(rows.values())


def examples() -> list[tuple[str, str]]:
    """(language, text) of each program that the page of clients shows."""
    return re.findall(r"^```(python|js)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def example_row(example: tuple[str, str], folder: Path, address: dict[str, str]) -> Row:
    """Run a program of the page as it stands there, with the address and key of the stack."""
    language, text = example
    host = address["BASE_URL"].removesuffix("/v1")
    text = text.replace(SHOWN_HOST, host).replace('"..."', json.dumps(address["API_KEY"]))
    if language == "js":
        file, client = folder / "node" / "example.mjs", "openai"
        program = ["node", str(file)]
    else:
        (client,) = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
        file = folder / "example.py"
        program = [str(folder / client.partition("_")[0] / "bin" / "python"), str(file)]
    file.write_text(text)
    ended = subprocess.run(
        program, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False
    )
    has_answered = ended.returncode == 0 and "time to first token" in ended.stdout
    last = (ended.stderr.strip().splitlines() or [ended.stdout[-200:]])[-1]
    errors = [] if has_answered else [f"example: {last}"]
    return Row(f"{client} ({language})", "docs/clients.md", ["example"], errors)


def client_of(program: str) -> str:
    """The packages of a program, with their versions."""
    names = ", ".join(f"{package} {version(program, package)}" for package in PACKAGES[program])
    return f"{names} (Node)" if program.endswith(".mjs") else names


def command(program: str, folder: Path) -> list[str]:
    """The command line of a program in its environment."""
    if program.endswith(".py"):
        name = program.removesuffix("_paths.py")
        return [str(folder / name / "bin" / "python"), str(PROGRAMS / program)]
    # Modules of Node are looked for beside the program.
    for path in PROGRAMS.glob("*.mjs"):
        shutil.copy(path, folder / "node")
    return ["node", str(folder / "node" / program)]


def version(program: str, package: str) -> str:
    """The version of a package that a program's environment asks for."""
    if program.endswith(".mjs"):
        wanted: dict[str, str] = json.loads((ENVIRONMENTS / "package.json").read_text())[
            "dependencies"
        ]
        return wanted[package]
    pins = (ENVIRONMENTS / f"{program.removesuffix('_paths.py')}.txt").read_text()
    found = re.search(rf"^{re.escape(package)}(?:\[.*\])?==(.+)$", pins, re.MULTILINE)
    assert found is not None, package
    return found[1]


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{'FAIL' if row.errors else 'ok':5}{row.client}")
        print(f"     {row.interface}: {', '.join(row.paths)}")
        for error in row.errors:
            print(f"     ! {error}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
