"""The page of clients names those that are tested, with the versions that are installed."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "tests" / "clients" / "environments"
# Not clients: what LiteLLM and lm-eval need, and the language in which schemas are written.
NO_CLIENTS = {"mcp", "transformers", "zod"}


def installed() -> set[str]:
    """Each client, with its version, as the page writes it."""
    lines = [line for path in ENVIRONMENTS.glob("*.txt") for line in path.read_text().splitlines()]
    python = {tuple(re.split(r"==|\[.*\]==", line)) for line in lines if not line.startswith("#")}
    node = json.loads((ENVIRONMENTS / "package.json").read_text())["dependencies"].items()
    return {f"`{name}` {pin}" for name, pin, *_ in (*python, *node) if name not in NO_CLIENTS}


def test_the_page_of_clients_names_each_one_with_the_version_that_is_tested() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    named = set(re.findall(r"`[@a-z][\w/@-]*` \d+\.\d[\d.]*", page))
    assert named == installed()
