"""What the latest requests cost, from the usage records that quota writes.

Each look reads what was added since the last one. Knows no prices: a record has the cost.
"""

from pathlib import Path
from threading import Lock

import msgspec

from baton.wire.usage_log import UsageLine

# Of a file that is seen for the first time, so many bytes at its end; about as many requests as a
# list looks among.
_MAX_FIRST_BYTES = 4 * 2**20
_MAX_KEPT = 10_000
_BILLIONTH = 1e-9


class LatestCosts:
    """The costs of the latest requests. Methods block, and run in any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._read_to: dict[Path, int] = {}
        # By (tenant, request id), the oldest first.
        self._costs: dict[tuple[str, str], float] = {}
        self._decode = msgspec.json.Decoder(UsageLine).decode

    def look(self) -> dict[tuple[str, str], float]:
        """The costs in the currency of the price list; only of requests that had a price."""
        with self._lock:
            # The day may have changed since the last look.
            for path in sorted(self._folder.glob("usage-*.jsonl"))[-2:]:
                self._read(path)
            for old in list(self._costs)[: -_MAX_KEPT or None]:
                del self._costs[old]
            return dict(self._costs)

    def _read(self, path: Path) -> None:
        with path.open("rb") as lines:
            size = lines.seek(0, 2)
            begin = lines.seek(self._read_to.get(path, max(0, size - _MAX_FIRST_BYTES)))
            if begin and path not in self._read_to:
                begin += len(lines.readline())
            # A line that is still being written is for the next look.
            whole = lines.read(size - begin).rpartition(b"\n")[0]
        self._read_to[path] = begin + len(whole) + bool(whole)
        for text in whole.splitlines():
            try:
                line = self._decode(text)
            except msgspec.MsgspecError:
                continue
            if line.price_version:
                self._costs[line.tenant, line.request_id] = line.cost * _BILLIONTH
