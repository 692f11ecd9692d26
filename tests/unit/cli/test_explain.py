"""`baton explain`: one explanation as lines for people."""

from typing import Any

from baton.cli.explain import render

PARTS = {
    "streams": 0.0,
    "zone": 0.0,
    "wait": 0.0,
    "prefill": 0.1,
    "handoff": 0.02,
    "steps": 0.01,
    "itl": 0.03,
}


def choice(decode: str, **parts: float) -> dict[str, Any]:
    own = PARTS | parts
    return {
        "decode": decode,
        "prefill": "p0",
        "num_cached_tokens": 64,
        "is_measured": True,
        "cost_s": sum(own.values()),
        "first_token_s": 0.13,
        "parts_s": own,
        "token_gap_s": 0.02,
    }


def explanation() -> dict[str, Any]:
    pick = {
        "decode": "d0",
        "prefill": "p0",
        "queue_s": 0.0003,
        "num_prompt_tokens": 512,
        "chosen": choice("d0"),
        "others": [choice("d1", itl=0.05)],
        "left_out": {"d2": "draining"},
        "num_omitted": 7,
        "remark": "",
        "measured_s": {
            "wait": 0.004,
            "prefill": 0.12,
            "handoff": 0.01,
            "steps": 0.02,
            "first_token": 0.154,
        },
        "regret_s": 0.004,
    }
    return {
        "request_id": "r1",
        "tenant": "acme",
        "model": "demo",
        "picks": [pick],
        "num_cached_tokens": 48,
        "token_gap_s": 0.025,
    }


def test_each_part_is_shown_as_predicted_and_as_measured() -> None:
    lines = list(render(explanation()))
    assert lines[0] == "request r1  model demo  tenant acme"
    rows = [line.split() for line in lines]
    assert ["prefill", "100.0", "ms", "120.0", "ms"] in rows
    assert ["first", "token", "130.0", "ms", "154.0", "ms"] in rows
    assert ["between", "two", "tokens", "20.0", "ms", "25.0", "ms"] in rows


def test_other_choices_and_workers_left_out_are_named_with_the_cause() -> None:
    text = "\n".join(render(explanation()))
    assert "not d1+p0  first token in 130.0 ms, cost 20.0 ms more: slower output" in text
    assert "left out  d2 draining, 7 more" in text
    assert "regret  4.0 ms" in text
    assert "64 of them expected in the cache, 48 were found" in text


def test_of_equal_choices_it_says_that_chance_decided() -> None:
    row = explanation()
    row["picks"][0]["others"] = [choice("d1")]
    text = "\n".join(render(row))
    assert "not d1+p0  first token in 130.0 ms, as cheap: chance decided" in text


def test_a_pick_without_a_prediction_shows_why() -> None:
    alone = {"chosen": None, "others": [], "left_out": {}, "num_omitted": 0, "measured_s": {}}
    row = explanation()
    row["picks"][0] |= alone | {"remark": "no router answers", "regret_s": None}
    assert list(render(row))[2:] == [
        "d0+p0  after 0.3 ms in the router's queue",
        "no router answers",
    ]
