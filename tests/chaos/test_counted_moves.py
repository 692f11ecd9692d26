"""What operators see of a stream that moved: it is counted by reason, and billed once."""

from typing import Any

from tests.chaos.conftest import Target
from tests.chaos.proxied_way import FIRST_GATEWAY
from tests.chaos.streams import Answer, assert_same, story
from tests.chaos.trials import MAX_TRIES, Missed, Trials
from tests.e2e.conftest import wait_until

NUM_TOKENS = 240


def test_a_stream_that_moved_is_counted_and_billed_once(target: Target, trials: Trials) -> None:
    for _ in range(MAX_TRIES):
        try:
            check_a_move(target)
        except Missed:
            target.wait_until_able()
        else:
            return
    raise AssertionError(f"{MAX_TRIES} faults struck nobody")


def check_a_move(target: Target) -> None:
    """Raises Missed when the stream had ended before its worker died."""
    sampling = {"max_tokens": NUM_TOKENS, "temperature": 0.9, "seed": 5}
    num_choices = 2 if target.serves(story(n=2, **sampling)) else 1
    body = story(n=num_choices, **sampling)
    right = target.right_answer(body)

    def counted(name: str, **labels: str) -> float:
        return target.stack.metric(FIRST_GATEWAY, name, **labels)

    num_moves = target.num_moves()
    moves = counted("baton_gateway_moves_total", reason="worker_lost")
    tokens = counted("vllm:request_generation_tokens_sum")
    stream = target.stream(body)
    stream.wait_for(target.rng.randint(1, 60))
    target.fault(target.busiest("decode")).kill().verify()
    answer = stream.join()
    assert_same(answer, right)
    if target.num_moves() == num_moves:
        raise Missed
    assert counted("baton_gateway_moves_total", reason="worker_lost") == moves + 1
    billed = counted("vllm:request_generation_tokens_sum") - tokens
    assert billed == answer.usage["completion_tokens"] == num_choices * NUM_TOKENS
    check_the_bill(target, answer, num_choices)


def check_the_bill(target: Target, answer: Answer, num_choices: int) -> None:
    """One record in the archive that bills, also when the bill of a later request has come."""

    def records_of(billed: Answer) -> list[dict[str, Any]]:
        return target.stack.usage_records(billed.request_id)

    wait_until(lambda: records_of(answer))
    later = target.stream(story(max_tokens=1)).join()
    wait_until(lambda: records_of(later))
    [record] = records_of(answer)
    told = [record[name] for name in ("num_prompt_tokens", "num_output_tokens")]
    assert told == [answer.usage[name] for name in ("prompt_tokens", "completion_tokens")]
    assert record["finish_reason"] == ",".join(["length"] * num_choices)
