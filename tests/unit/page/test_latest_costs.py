"""The costs of requests as the page reads them, while quota goes on writing."""

from pathlib import Path

import msgspec

from baton.page.latest_costs import LatestCosts
from baton.wire.usage_log import UsageLine


def line(request_id: str, cost: int, price_version: str = "1", tenant: str = "acme") -> bytes:
    told = UsageLine(
        tenant=tenant, request_id=request_id, key_id="k", model="m", settled_unix_ms=1,
        num_prompt_tokens=1, num_output_tokens=1, finish_reason="stop", cost=cost,
        price_version=price_version,
    )  # fmt: skip
    return msgspec.json.encode(told) + b"\n"


def test_each_look_adds_what_was_written_since_and_waits_for_the_end_of_a_line(
    tmp_path: Path,
) -> None:
    costs = LatestCosts(tmp_path)
    assert costs.look() == {}
    today, tomorrow = tmp_path / "usage-2026-11-28.jsonl", tmp_path / "usage-2026-11-29.jsonl"
    half = line("b", 2_000_000_000)
    today.write_bytes(line("a", 500_000_000) + half[:20])
    assert costs.look() == {("acme", "a"): 0.5}
    with today.open("ab") as file:
        file.write(half[20:])
    tomorrow.write_bytes(line("a", 7_000_000_000, tenant="other"))
    assert costs.look() == {("acme", "a"): 0.5, ("acme", "b"): 2.0, ("other", "a"): 7.0}


def test_without_a_price_a_request_has_no_cost(tmp_path: Path) -> None:
    (tmp_path / "usage-2026-11-28.jsonl").write_bytes(line("a", 0, price_version=""))
    assert LatestCosts(tmp_path).look() == {}


def test_a_line_that_is_no_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "usage-2026-11-28.jsonl").write_bytes(b"{}\n" + line("a", 1_000_000_000))
    assert LatestCosts(tmp_path).look() == {("acme", "a"): 1.0}
