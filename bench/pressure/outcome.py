"""Figures of requests that were sent at set times, from the records of `open_loop.py`. Pure.

An answer is good when it is whole and its first token came in time, counted from the moment at
which the request should have been sent.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from loadtest.reporting.latency import percentile

Record = dict[str, Any]
# Normal is a first token within so much of what it takes without load, for so long.
NORMAL_FACTOR = 1.5
NORMAL_WINDOW_S = 3.0
_STEP_S = 0.25
_STAGE = re.compile(r"(\w+)=([\d.]+)ms")


def arrived(records: Iterable[Record], begin: float, end: float) -> list[Record]:
    """The requests of this time."""
    return [each for each in records if begin <= each["at_s"] < end]


def ttft_s(records: Iterable[Record]) -> list[float]:
    """The times to first token of those that had one."""
    return [each["first_s"] - each["at_s"] for each in records if "first_s" in each]


def goodput_per_s(records: Iterable[Record], begin: float, end: float, due_s: float) -> float:
    """The good answers that ended in this time, per second."""
    good = [
        each
        for each in records
        if each["status"] == 200
        and not each["code"]
        and each["first_s"] - each["at_s"] <= due_s
        and begin <= each["ended_s"] < end
    ]
    return len(good) / (end - begin)


def refused(records: Iterable[Record]) -> list[Record]:
    """The requests that were refused with advice when to come again."""
    return [each for each in records if each["status"] == 503]


def refusal_s(records: Iterable[Record]) -> list[float]:
    """The times from sending a request to the end of its refusal, as the client has them."""
    return [each["ended_s"] - each["sent_s"] for each in refused(records)]


def gateway_refusal_s(lines: Iterable[str], request_ids: Collection[str]) -> list[float]:
    """The times of these requests by the gateway's own stages, from the lines of its log."""
    return [sum(stages.values()) for stages in _stages(lines, request_ids)]


def repeated_share(lines: Iterable[str], request_ids: Collection[str]) -> float:
    """The share of these refused requests for which the gateway asked no router."""
    asked = ["pick" in stages for stages in _stages(lines, request_ids)]
    return asked.count(False) / max(1, len(asked))


def stage_p99_s(lines: Iterable[str], request_ids: Collection[str]) -> dict[str, float]:
    """The 99th percentile of each stage of these requests."""
    times: dict[str, list[float]] = {}
    for stages in _stages(lines, request_ids):
        for name, seconds in stages.items():
            times.setdefault(name, []).append(seconds)
    return {name: percentile(values, 99) or 0.0 for name, values in times.items()}


def _stages(lines: Iterable[str], request_ids: Collection[str]) -> Iterator[dict[str, float]]:
    wanted = set(request_ids)
    for line in lines:
        entry = json.loads(line) if '"stages"' in line else {}
        if entry.get("request_id") in wanted:
            found = _STAGE.findall(entry["stages"])
            yield {name: float(milliseconds) / 1000 for name, milliseconds in found}


def codes(records: Iterable[Record]) -> Counter[str]:
    """The statuses and codes of all that were not answered whole."""
    failed = (each for each in records if each["status"] != 200 or each["code"])
    return Counter(f"{each['status']} {each['code']}".strip() for each in failed)


def retry_advice(records: Sequence[Record], idle_ttft_s: float) -> Record:
    """Compare what refusals advised with what came of other requests.

    `within_1_s`: the share whose Retry-After is within 1 s of the wait of the next request that was
    let in. `let_in`: the share after whose Retry-After the next request to come was let in.
    """
    ordered = sorted(records, key=lambda each: each["at_s"])
    num_near = num_let_in = num = 0
    for index, one in enumerate(ordered):
        if one["status"] != 503:
            continue
        later = ordered[index + 1 :]
        admitted = next((each for each in later if "first_s" in each), None)
        back_s = one["at_s"] + one["retry_after_s"]
        returned = next((each for each in later if each["at_s"] >= back_s), None)
        if admitted is None or returned is None:
            continue
        num += 1
        waited_s = admitted["first_s"] - admitted["at_s"] - idle_ttft_s
        num_near += abs(one["retry_after_s"] - math.ceil(max(waited_s, 1.0))) <= 1
        num_let_in += "first_s" in returned
    return {"within_1_s": num_near / max(1, num), "let_in": num_let_in / max(1, num)}


def normal_after_s(
    records: Sequence[Record], fell_at: float, end: float, idle_p50_s: float
) -> float | None:
    """Seconds from the fall of the load until nobody is refused any more and the first tokens of
    NORMAL_WINDOW_S are as fast as without load, in the median; None when that never is."""
    last_refusal = max((each["at_s"] for each in refused(records)), default=0.0)
    begin = max(fell_at, last_refusal)
    while begin + NORMAL_WINDOW_S <= end:
        p50_s = percentile(ttft_s(arrived(records, begin, begin + NORMAL_WINDOW_S)), 50)
        if p50_s is not None and p50_s <= NORMAL_FACTOR * idle_p50_s:
            return begin - fell_at
        begin += _STEP_S
    return None


def most_ahead(records: Iterable[Record], one: str, other: str, begin: float, end: float) -> int:
    """The largest difference between the answers of two tenants that had begun, at any time from
    `begin` to `end`, counted from any earlier time in it."""
    begun = sorted(
        (each["first_s"], each["tenant"])
        for each in records
        if "first_s" in each and begin <= each["first_s"] < end
    )
    ahead = lowest = highest = 0
    for _, tenant in begun:
        ahead += (tenant == one) - (tenant == other)
        lowest, highest = min(lowest, ahead), max(highest, ahead)
    return highest - lowest
