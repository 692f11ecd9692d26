"""The arithmetic of the overload benchmark, and the pace of its workers' cores."""

import numpy as np
import pytest

from baton.engine.protocol.batch import StepBatch
from bench.pressure import outcome
from bench.pressure.overload_report import render
from bench.pressure.pace import Pace, PacedRunner


def answered(at_s: float, ttft_s: float = 0.1, took_s: float = 1.0, tenant: str = "a") -> dict:
    return {
        "tenant": tenant,
        "at_s": at_s,
        "sent_s": at_s,
        "first_s": at_s + ttft_s,
        "ended_s": at_s + took_s,
        "status": 200,
        "code": "",
    }


def refusal(at_s: float, took_s: float = 0.01, retry_after_s: float = 2.0) -> dict:
    return {
        "tenant": "a",
        "at_s": at_s,
        "sent_s": at_s,
        "ended_s": at_s + took_s,
        "status": 503,
        "code": "overloaded",
        "retry_after_s": retry_after_s,
        "request_id": f"r{at_s:g}",
    }


def test_goodput_counts_whole_answers_that_began_in_time_and_ended_then() -> None:
    records = [
        answered(0.0),
        answered(0.0, took_s=9.0),
        answered(1.0, ttft_s=0.9),
        answered(2.0) | {"code": "cut"},
        refusal(2.0),
    ]
    assert outcome.goodput_per_s(records, 0.0, 4.0, due_s=0.5) == pytest.approx(1 / 4)


def test_refusals_are_timed_at_the_client_and_by_the_gateways_stages() -> None:
    records = [answered(0.0), refusal(1.0), refusal(2.0, took_s=0.03)]
    log = [
        "not of a request",
        '{"request_id": "r1", "status": 503, "stages": "auth=1.5ms pick=2.5ms"}',
        '{"request_id": "other", "status": 200, "stages": "auth=9.0ms"}',
    ]
    assert outcome.refusal_s(records) == pytest.approx([0.01, 0.03])
    assert outcome.gateway_refusal_s(log, {"r1", "r2"}) == pytest.approx([0.004])
    assert outcome.repeated_share(log, {"r1", "other"}) == 0.5
    assert outcome.stage_p99_s(log, {"r1"}) == {"auth": 0.0015, "pick": 0.0025}
    assert outcome.codes(records) == {"503 overloaded": 2}


def test_advice_is_compared_with_the_next_wait_and_with_who_came_then() -> None:
    records = [
        refusal(0.0, retry_after_s=2.0),
        answered(0.5, ttft_s=2.4),
        refusal(1.0, retry_after_s=9.0),
        answered(1.5, ttft_s=2.4),
        answered(2.5),
        refusal(10.0, retry_after_s=1.0),
    ]
    advice = outcome.retry_advice(records, idle_ttft_s=0.4)
    assert advice == {"within_1_s": 0.5, "let_in": 0.5}


def test_all_is_normal_when_none_is_refused_and_first_tokens_are_fast() -> None:
    slow = [answered(10.0 + n / 4, ttft_s=1.0) for n in range(12)]
    fast = [answered(13.0 + n / 4) for n in range(40)]
    after_s = outcome.normal_after_s([refusal(11.0), *slow, *fast], 10.0, 23.0, 0.1)
    assert after_s == pytest.approx(1.75, abs=0.5)
    assert outcome.normal_after_s([refusal(22.0), *fast], 10.0, 23.0, 0.1) is None


def test_who_is_ahead_is_counted_from_any_moment() -> None:
    times = enumerate("aabbbba")
    records = [answered(float(at), tenant=tenant) for at, tenant in times]
    assert outcome.most_ahead(records, "a", "b", 0.0, 99.0) == 4


def test_a_step_takes_the_time_of_its_decodes_and_of_its_prompt_tokens() -> None:
    slept: list[float] = []
    batch = StepBatch(
        step=0,
        token_ids=np.zeros(7, np.int64),
        positions=np.zeros(7, np.int64),
        query_starts=np.array([0, 1, 2, 7], np.int32),
        context_lens=np.array([4, 4, 5], np.int32),
        block_tables=np.zeros((3, 1), np.int32),
        seq_ids=[1, 2, 3],
        sample_rows=[],
    )
    pace = Pace(decode_s=0.1, prompt_token_s=0.01, token_id=7)
    PacedRunner(None, pace, slept.append).run(batch)
    assert slept == pytest.approx([0.15])


def test_the_report_has_a_row_for_each_phase_and_case() -> None:
    percentiles = {
        f"{name}_p{percent}_s": 0.5
        for name in ("ttft", "refusal", "gateway_refusal", "retry_after")
        for percent in (50, 99)
    }
    waits = {"waits": {"router-0": 0.001, "gateway-0": 0.0124, "client": 0.003}}
    stages = {"stage_p99_s": {"queue": 0.02, "decode": 5.0}}
    cores = {"stack_cpu": 0.5, "client_cpu": 0.1, "others_cpu": 0.0, "client_late_p99_s": 0.001}
    common = {"num_requests": 9, "codes": {"503 overloaded": 3}, **percentiles, **cores}
    options = {"slots": 80, "step_s": 0.1, "num_output": 50, "due_s": 10, "seconds": 60, "seed": 1}
    records = [
        {"part": "environment", "options": options, "cpu": "a CPU", "num_cpus": 2},
        {"part": "capacity", "per_s": 10.0},
        {
            "part": "shed",
            "phase": "3x",
            "goodput_per_s": 9.5,
            "num_refused": 3,
            "repeated_share": 0.9,
            "retry": {"within_1_s": 1.0, "let_in": 0.3},
            **stages,
            **common,
        },
        {"part": "normal", "after_s": 4.25},
        {"part": "fair", "case": "quiet alone", "per_s": 9.9, "most_ahead": 0, **waits, **common}
        | stages,
    ]
    text = render(records)
    assert "| 3x | 9 | 0.95 | 0.50 / 0.50 | 3, 90% |" in text
    assert "Normal again 4.2 s after" in text
    assert (
        "| quiet alone | 9 | 0.50 / 0.50 | 1.00x, 1.00x | queue 20 | 0.990 | 0 | 3 503 overloaded |"
        in text
    )
    assert "| gateway-0 12, client 3, router-0 1 |" in text
