"""Explained picks: the prediction beside what was measured, kept in bounds."""

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY

from baton.wire.v1 import router_pb2
from services.gateway.routing.explanations import MAX_KEPT, MAX_PICKS, Explanation, Explanations
from tests.unit.gateway.fakes import Fleet, simulate

STAGES = {"prefill.queue": 0.01, "prefill.compute": 0.2, "handoff": 0.03, "admit": 0.001}


def choice(decode: str, prefill: str = "p1", **parts: Any) -> router_pb2.PickChoice:
    figures = {"prefill_s": 0.1, "handoff_s": 0.03, "steps_s": 0.02, "itl_s": 0.05, "step_s": 0.02}
    return router_pb2.PickChoice(
        decode_worker_id=decode,
        prefill_worker_id=prefill,
        **({"is_measured": True} | figures | parts),
    )


def picked(*choices: router_pb2.PickChoice) -> router_pb2.PickResponse:
    return router_pb2.PickResponse(
        decode=router_pb2.WorkerEndpoint(worker_id="d1"),
        reasons=router_pb2.PickReasons(choices=choices, num_prompt_tokens=100),
    )


def explained(*choices: router_pb2.PickChoice, first_token_s: float = 0.3) -> dict[str, Any]:
    """The row of a pick whose first token came after this time."""
    explanation = Explanation("r1", "acme", "demo", is_counted=False)
    explanation.picked(picked(*choices), 0.5, 10.0)
    explanation.began(10.0 + first_token_s, STAGES)
    (row,) = json.loads(explanation.to_json())["picks"]
    return dict(row)


def observed(name: str, **labels: str) -> tuple[float, float]:
    """Count and sum of a histogram."""
    values = [REGISTRY.get_sample_value(f"{name}_{part}", labels) for part in ("count", "sum")]
    return values[0] or 0.0, values[1] or 0.0


def test_the_measured_parts_add_up_to_the_first_token() -> None:
    measured_s = explained(choice("d1"))["measured_s"]
    assert measured_s.pop("first_token") == 0.3
    assert measured_s == {"wait": 0.01, "prefill": 0.2, "handoff": 0.03, "steps": 0.06}


def test_regret_is_the_measured_cost_less_the_best_other_prediction() -> None:
    near, far = choice("d2", wait_s=0.1), choice("d3", wait_s=0.3)
    row = explained(choice("d1"), near, far, first_token_s=0.3)
    assert row["regret_s"] == pytest.approx(0.3 + 0.05 - 0.3)
    assert [other["cost_s"] for other in row["others"]] == [0.3, 0.5]


def test_a_choice_that_stayed_the_best_is_not_regretted() -> None:
    assert explained(choice("d1"), choice("d2", wait_s=0.5))["regret_s"] == 0.0


def test_the_only_choice_is_not_regretted() -> None:
    assert explained(choice("d1"))["regret_s"] is None


def test_a_guess_counts_neither_as_regret_nor_as_an_error() -> None:
    before = observed("baton_gateway_pick_error_ratio", model_name="guess", part="prefill")
    explanation = Explanation("r1", "acme", "guess", is_counted=True)
    explanation.picked(picked(choice("d1", is_measured=False), choice("d2")), 0.0, 1.0)
    explanation.began(2.0, STAGES)
    explanation.ended(0, 0.1)
    assert observed("baton_gateway_pick_error_ratio", model_name="guess", part="prefill") == before
    assert json.loads(explanation.to_json())["picks"][0]["regret_s"] is None


def test_errors_are_counted_by_part_and_a_local_prefill_has_no_handoff() -> None:
    name = "baton_gateway_pick_error_ratio"
    explanation = Explanation("r1", "acme", "local", is_counted=True)
    explanation.picked(picked(choice("d1", prefill="", handoff_s=0.0)), 0.0, 1.0)
    explanation.began(1.3, {"prefill.compute": 0.2})
    explanation.ended(50, 0.04)
    assert observed(name, model_name="local", part="prefill") == (1, pytest.approx(0.201 / 0.101))
    assert observed(name, model_name="local", part="token_gap") == (1, pytest.approx(0.041 / 0.021))
    assert observed(name, model_name="local", part="handoff") == (0, 0)


def test_the_latest_requests_and_picks_are_kept() -> None:
    explanations = Explanations()
    for number in range(MAX_KEPT + 1):
        explanations.keep(Explanation(f"r{number}", "acme", "demo", is_counted=True))
    assert explanations.page("r0") is None
    assert explanations.page("r1") is not None
    explanation = Explanation("r1", "acme", "demo", is_counted=True)
    for number in range(MAX_PICKS + 3):
        explanation.picked(picked(choice(f"d{number}")), 0.0, 1.0)
    assert len(json.loads(explanation.to_json())["picks"]) == MAX_PICKS


def test_a_list_of_prompts_leaves_the_explanations_of_other_requests() -> None:
    explanations = Explanations()
    explanations.keep(Explanation("req_a", "acme", "demo", is_counted=True))
    for number in range(2048):
        explanations.keep(Explanation(f"req_b.{number}", "ann", "demo", is_counted=True))
    assert explanations.page("req_a") is not None
    assert explanations.page("req_b.0") is not None


def test_an_explanation_is_found_by_the_clients_id_too() -> None:
    explanations = Explanations()
    for number, client_id in enumerate(["", "job", "job", "other"]):
        request_id = f"r{number}"
        explanations.keep(
            Explanation(request_id, "acme", "demo", is_counted=True, client_request_id=client_id)
        )
    assert json.loads(explanations.page("job") or b"")["request_id"] == "r2"
    assert explanations.page("") is explanations.page("unknown") is None


def test_a_request_is_explained_from_its_pick_to_its_last_token() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.reasons = picked(choice("w1"), choice("w2", wait_s=0.5)).reasons
        fleet.router.queue_s = 0.25
        fleet.worker.prefill_stages = {"prefill.queue": 0.01, "prefill.compute": 0.03}
        fleet.worker.num_cached = 16
        sink = await fleet.chat(messages=[{"role": "user", "content": "canary"}])
        page = fleet.gateway.explanations.page("r1")
        assert page is not None
        assert b"canary" not in page
        row = json.loads(page)
        assert (row["tenant"], row["num_cached_tokens"]) == ("acme", 16)
        assert row["token_gap_s"] == pytest.approx(0.01, rel=0.1)
        (pick,) = row["picks"]
        assert (pick["decode"], pick["prefill"], pick["queue_s"]) == ("w1", "p1", 0.25)
        assert pick["measured_s"]["prefill"] == 0.03
        assert pick["measured_s"]["first_token"] == pytest.approx(0.05, abs=0.002)
        assert sink.head is not None
        assert not sink.head.explanation, "nobody asked for it"

    simulate(scenario)


def test_a_beam_search_is_explained_but_not_counted() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.reasons = picked(choice("w1"), choice("w2")).reasons
        fleet.worker.prefill_stages = {"prefill.compute": 0.03}
        labels = {"model_name": "demo", "part": "first_token"}
        before = observed("baton_gateway_pick_error_ratio", **labels)
        await fleet.chat(use_beam_search=True, n=2, max_tokens=20)
        assert fleet.gateway.explanations.page("r1") is not None
        assert observed("baton_gateway_pick_error_ratio", **labels) == before

    simulate(scenario)
