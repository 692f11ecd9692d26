"""`baton status`: what the engines of the stack guarantee."""

from baton.cli.status import model_lines
from baton.wire.v1 import router_pb2


def test_a_model_is_shown_with_what_its_engine_keeps_and_refuses() -> None:
    model = router_pb2.ModelState(name="demo", engines=["baton"], unsupported=["use_beam_search"])
    head, kept, refused = model_lines(model)
    assert head == "demo  engine baton"
    assert kept.split()[0] == "yes"
    assert "greedy_answer_after_failover" in kept
    assert refused.split() == ["refused", "use_beam_search"]


def test_an_engine_that_the_suite_has_not_run_on_promises_nothing() -> None:
    model = router_pb2.ModelState(name="demo", engines=["baton", "vllm 99"])
    assert model_lines(model) == ["demo  engine baton, vllm 99"]
