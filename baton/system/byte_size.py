"""Amounts of memory as people write them: 512MiB, 2GiB, 1.5GB, or a number of bytes."""

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[KMGT]?)(?P<binary>i?)B?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """`2GiB` (or 2Gi) is 2 * 2**30, `2GB` (or 2G) is 2 * 10**9. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip()) if text.isascii() else None
    unit = found["unit"].upper() if found else ""
    if found is None or (found["binary"] and not unit):
        raise ValueError(f"{text!r} is not an amount of memory such as 512MiB or 2GiB")
    factor = _BINARY_UNITS[unit] if found["binary"] else _UNITS[unit]
    return int(float(found["number"]) * factor)


def format_bytes(num_bytes: float) -> str:
    """Text for a person: `12 MiB`, `2.25 GiB`, `13.1 GiB`."""
    gib = num_bytes / 2**30
    if gib < 1:
        return f"{num_bytes / 2**20:.3g} MiB"
    return f"{gib:.1f} GiB" if gib >= 10 else f"{gib:.2f} GiB"
