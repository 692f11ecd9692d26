"""Services that die while streams run, and while new ones come: one of two is enough."""

import pytest

from tests.chaos.conftest import Target
from tests.chaos.proxied_way import FIRST_GATEWAY
from tests.chaos.streams import STORY, Answer, assert_same, story
from tests.chaos.trials import Missed, Trials

# What a replica counts of each new request.
COUNTERS = {
    "quota": "baton_quota_reservations_total",
    "tokenizer": "baton_tokenizer_stage_seconds_count",
    "router": "baton_router_picks_total",
}


@pytest.mark.parametrize("service", COUNTERS)
def test_a_dying_service_is_not_noticed(service: str, target: Target, trials: Trials) -> None:
    """The replica that has served a stream dies under it; the other one serves the next request."""
    body = story(max_tokens=120)
    right = target.right_answer(body)

    def served() -> dict[str, float]:
        return target.counts(service, COUNTERS[service])

    def trial(number: int) -> float:
        target.wait_until_able()
        counted = served()
        before = target.stream(body)
        before.wait_for(5)
        [used] = [name for name, count in served().items() if count > counted[name]]
        target.fault(used).kill().verify()
        was_over = before.is_over
        after = target.stream(body)
        answers = [before.join(), after.join()]
        for answer in answers:
            assert_same(answer, right)
        [other] = set(counted) - {used}
        if was_over or served()[other] == counted[other]:
            raise Missed  # the stream had ended, or the replica was back
        return max(answers[0].stall_s, answers[1].first_text_s)

    trials.run(f"kill -9 {service}", 50, trial)


def test_half_of_the_routers_die_under_load_and_hits_stay(target: Target, trials: Trials) -> None:
    """The other router has had its share of the requests, and takes all of them. A dozen prompts:
    nine in ten have to be found, and of fewer than ten that would be all of them."""
    bodies = [story(question=f"{n}. {STORY * 12}", max_tokens=20) for n in range(12)]
    right = [target.right_answer(body) for body in bodies]

    def trial(number: int) -> float:
        target.wait_until_able()
        before = [target.stream(body).join() for body in bodies]
        running = [target.stream(body) for body in bodies]
        for stream in running:
            stream.wait_for(1)
        target.fault(f"router-{number % 2 + 1}").kill().verify()
        new = [target.stream(body).join() for body in bodies]
        after = [target.stream(body).join() for body in bodies]
        for answers in (before, [stream.join() for stream in running], new, after):
            for answer, same in zip(answers, right, strict=True):
                assert_same(answer, same)
        assert num_cached(after) >= 0.9 * num_cached(before) > 0
        return max(answer.first_text_s for answer in new)

    trials.run("kill -9 one of two routers, under load", 50, trial)


def num_cached(answers: list[Answer]) -> int:
    """The prompt tokens that were not computed."""
    return sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers)


def test_streams_begin_while_every_router_is_dead(target: Target, trials: Trials) -> None:
    body = story(max_tokens=40)
    right = target.right_answer(body)

    def trial(number: int) -> float:
        target.wait_until_able()
        alone = target.stack.metric(FIRST_GATEWAY, "baton_gateway_lone_picks_total")
        for fault in [target.fault("router-1"), target.fault("router-2")]:
            fault.kill().verify()
        streams = [target.stream(body) for _ in range(4)]
        answers = [stream.join() for stream in streams]
        for answer in answers:
            assert_same(answer, right)
        if target.stack.metric(FIRST_GATEWAY, "baton_gateway_lone_picks_total") == alone:
            raise Missed  # a router was back before they were asked
        return max(answer.first_text_s for answer in answers)

    trials.run("kill -9 all routers", 50, trial)
