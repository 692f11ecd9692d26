"""Whom a gateway asks while no router answers."""

import random
from collections.abc import Iterable

import pytest

from baton.wire.failures import Unavailable
from baton.wire.v1 import router_pb2
from services.gateway.routing.fallback_picker import FallbackPicker
from services.gateway.routing.ready_workers import ReadyWorkers

DECODE, PREFILL = router_pb2.WORKER_ROLE_DECODE, router_pb2.WORKER_ROLE_PREFILL


def view_of(num_open: dict[str, int | None], **states: dict) -> FallbackPicker:
    """`num_open`: by worker, what this gateway has there."""
    return FallbackPicker(random.Random(1), ready(num_open, **states), num_open.get)


def ready(names: Iterable[str], **states: dict) -> ReadyWorkers:
    workers = [
        router_pb2.WorkerState(
            worker_id=name,
            endpoint=f"{name}:1",
            **{"role": DECODE, "ready": True, **states.get(name, {})},
        )
        for name in names
    ]
    known = ReadyWorkers()
    known.update([router_pb2.ModelState(model_fp="m1", workers=workers)])
    return known


def picks(view: FallbackPicker, **fields) -> set[str]:
    request = router_pb2.PickRequest(model_fp="m1", **fields)
    answers = [view.pick(request) for _ in range(60)]
    assert not any(answer.HasField("prefill") for answer in answers)
    assert all(answer.decode.endpoint == f"{answer.decode.worker_id}:1" for answer in answers)
    return {answer.decode.worker_id for answer in answers}


def test_of_two_drawn_at_random_the_less_loaded_is_asked() -> None:
    assert picks(view_of({"a": 5, "b": 1, "c": 3})) == {"b", "c"}


def test_only_decode_workers_that_were_ready_are_asked() -> None:
    states = {"b": {"role": PREFILL}, "c": {"ready": False}, "d": {"draining": True}}
    assert picks(view_of({"a": 9, "b": 0, "c": 0, "d": 0}, **states)) == {"a"}


def test_prefill_workers_that_stand_in_are_asked_when_no_decode_worker_was_ready() -> None:
    states = {"a": {"ready": False}, "b": {"role": PREFILL, "stands_in": True}}
    old = {"c": {"role": PREFILL}}
    assert picks(view_of({"a": 0, "b": 3, "c": 0}, **states, **old)) == {"b"}
    states["a"] = {}
    assert picks(view_of({"a": 0, "b": 3, "c": 0}, **states, **old)) == {"a"}


def test_those_that_failed_or_whose_link_is_closed_come_last() -> None:
    view = view_of({"a": 0, "b": None, "c": 7})
    assert picks(view, exclude_worker_ids=["a"]) == {"c"}
    assert picks(view, exclude_worker_ids=["a", "c"]) == {"a"}
    assert picks(view_of({"b": None})) == {"b"}


@pytest.mark.parametrize("fields", [{"model_fp": "m2"}, {"model_fp": "m1", "num_deaths": 2}])
def test_without_a_worker_or_after_two_dead_cores_a_request_is_refused(fields: dict) -> None:
    with pytest.raises(Unavailable) as caught:
        view_of({"a": 0}).pick(router_pb2.PickRequest(**fields))
    assert caught.value.reason == "overloaded"


def test_another_worker_is_one_that_is_not_this_one() -> None:
    view = ready(("a", "b"), b={"ready": False})
    assert view.has_another("m1", "b")
    assert not view.has_another("m1", "a")
    assert not view.has_another("m2", "a")


def test_only_workers_with_the_adapter_are_asked_for_it() -> None:
    poems = [router_pb2.Adapter(name="poems", fingerprint="a1")]
    view = view_of({"a": 0, "b": 9, "c": 0}, b={"adapters": poems})
    assert picks(view, adapter="a1") == {"b"}
    known = ready("abc", b={"adapters": poems})
    assert known.has_another("m1", "a", "a1")
    assert not known.has_another("m1", "b", "a1")
