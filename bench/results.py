"""A file of results that is kept beside its page, and renewed part by part."""

import json
from pathlib import Path


def replace_parts(kept: Path, measured: Path) -> None:
    """Put the records of `measured` into `kept`, for the older ones of the same parts."""
    new = [json.loads(line) for line in measured.read_text().splitlines()]
    renewed = {record["part"] for record in new}
    old = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    records = [record for record in old if record["part"] not in renewed] + new
    kept.write_text("".join(json.dumps(record) + "\n" for record in records))
