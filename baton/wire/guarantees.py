"""What each engine keeps of what Baton promises, as the suite of engines has found it.

`guarantees.json` is made from its results by `python -m tools.engine_table`, never typed: by engine
and version, by guarantee, `yes`, `expected` (all trials kept it, but what else a step computes may
change an engine's results) or `no`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).with_name("guarantees.json")
# The weakest first.
LEVELS = ("no", "expected", "yes")

_FOUND: Mapping[str, Mapping[str, str]] = json.loads(FILE.read_text())


def guarantees_of(engines: Iterable[str]) -> dict[str, str]:
    """What all these engines keep, each guarantee at the level of the weakest; empty when the suite
    has not been run on one of them."""
    tables = [_FOUND.get(engine) for engine in engines]
    known = [table for table in tables if table is not None]
    if not known or len(known) < len(tables):
        return {}
    return {name: min((table[name] for table in known), key=LEVELS.index) for name in known[0]}
