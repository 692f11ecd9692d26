"""A kept file of results: a part that is measured again takes the place of the older figures."""

import json
from pathlib import Path
from typing import Any

from bench.results import replace_parts


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_was_measured_again_replaces_its_part_and_no_other(tmp_path: Path) -> None:
    kept, measured = tmp_path / "kept.jsonl", tmp_path / "measured.jsonl"
    measured.write_text('{"part": "picks", "n": 1}\n{"part": "index", "n": 1}\n')
    replace_parts(kept, measured)
    assert records(kept) == records(measured)
    measured.write_text('{"part": "picks", "n": 2}\n{"part": "picks", "n": 3}\n')
    replace_parts(kept, measured)
    assert [(each["part"], each["n"]) for each in records(kept)] == [
        ("index", 1),
        ("picks", 2),
        ("picks", 3),
    ]
