"""Connections that break, and bytes that change on the way: right text every time."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from baton.testing.fault_proxy import FaultProxy
from baton.testing.faults import DIRECTIONS
from tests.chaos.conftest import Target
from tests.chaos.proxied_way import ProxiedWay
from tests.chaos.streams import assert_same, story
from tests.chaos.trials import Missed, Trials
from tests.e2e.conftest import wait_until

NUM_TOKENS = 160
# About 1,300 prompt tokens: a handoff of some hundred kilobytes.
LONG = "Tell me, in a few words, about the price of tea and the way to the station. " * 60
# Reads of this size are blocks, not frames of control.
BLOCK_READ_BYTES = 4096
SLOW_BYTES_PER_S = 200_000.0
MAX_VANISHED_S = 6.0
VANISHED_TIMEOUT_S = 60


def fresh_prompt(target: Target) -> dict[str, Any]:
    """No worker has any of it cached."""
    return story(max_tokens=6, question=f"{target.rng.random()} {LONG}")


def prefill_proxies(way: ProxiedWay) -> list[FaultProxy]:
    return [proxy for name, proxy in way.proxies.items() if name.startswith("prefill")]


def num_bad_blocks(target: Target) -> float:
    return sum(target.counts("decode", "baton_handoff_bad_blocks_total").values())


def num_handoffs(target: Target, outcome: str) -> float:
    """That decode workers asked for, and that ended so: complete or aborted."""
    labels = {"direction": "received", "outcome": outcome}
    name = "baton_handoff_transfers_total"
    return sum(target.figure(worker, name, **labels) for worker in target.replicas("decode"))


@pytest.mark.parametrize("ending", ["reset", "closed"])
def test_a_stream_outlives_its_connection(
    ending: str, target: Target, way: ProxiedWay, trials: Trials
) -> None:
    body = story(max_tokens=NUM_TOKENS, temperature=0.8, seed=5)
    right = target.right_answer(body)

    def num_again() -> float:
        names = ("baton_gateway_moves_total", "baton_gateway_repeated_picks_total")
        return sum(way.metric(name) for name in names)

    def num_resumed(worker: str) -> float:
        return target.figure(worker, "baton_decode_parked_gateways_total", outcome="resumed")

    def trial(number: int) -> float:
        before, stream = num_again(), target.stream(body, way)
        stream.wait_for(target.rng.randint(1, NUM_TOKENS // 2))
        name = target.busiest("decode")
        resumed = num_resumed(name)
        way.proxies[name].cut(reset=ending == "reset")
        way.proxies[name].verify()
        was_over = stream.is_over
        answer = stream.join()
        assert_same(answer, right)
        assert num_again() == before, "something was prefilled again"
        if was_over or num_resumed(name) == resumed:
            raise Missed  # the gateway had all of it
        return answer.stall_s

    trials.run(f"decode connection {ending}", 200, trial)


def test_a_flipped_bit_in_a_handoff_is_found(
    target: Target, way: ProxiedWay, trials: Trials
) -> None:
    def num_flipped() -> int:
        return sum(proxy.counts["to_client.corrupt"] for proxy in prefill_proxies(way))

    def trial(number: int) -> float:
        body, before = fresh_prompt(target), num_flipped()
        offset = target.rng.randrange(20_000)
        for proxy in prefill_proxies(way):
            proxy.set("to_client", corrupt_offset=offset, corrupt_min_bytes=BLOCK_READ_BYTES)
        answer = target.stream(body, way).join()
        for proxy in prefill_proxies(way):
            proxy.heal()
        assert num_flipped() > before, "no bit was flipped"
        assert_same(answer, target.right_answer(body))
        return answer.first_text_s

    bad_before, flipped_before = num_bad_blocks(target), num_flipped()
    trials.run("bit flipped in a handoff", 50, trial)
    # A few bits hit the framing, and then the connection breaks.
    assert num_bad_blocks(target) - bad_before >= (num_flipped() - flipped_before) / 2


def cut_while(
    target: Target, way: ProxiedWay, body: dict[str, Any], is_due: Callable[[], bool]
) -> float:
    """Cut the prefill workers' connections once it is due; returns how long the first text took.
    The workers must have counted a handoff that broke, and one that was made instead. Raises Missed
    where none broke."""
    aborted, complete = num_handoffs(target, "aborted"), num_handoffs(target, "complete")
    stream = target.stream(body, way)
    while not (is_now := is_due()) and not stream.is_over:
        pass
    if is_now:
        for proxy in prefill_proxies(way):
            proxy.cut()
    for proxy in prefill_proxies(way):
        proxy.heal()
    answer = stream.join()
    num_aborted = num_handoffs(target, "aborted") - aborted
    num_complete = num_handoffs(target, "complete") - complete
    assert_same(answer, target.right_answer(body))
    if not is_now or not num_aborted:
        raise Missed  # all of it had come
    assert num_complete == 1
    return answer.first_text_s


def test_a_connection_that_is_cut_in_prefill_is_dialled_again(
    target: Target, way: ProxiedWay, trials: Trials
) -> None:
    def trial(number: int) -> float:
        return cut_while(target, way, fresh_prompt(target), lambda: bool(target.busy("prefill")))

    trials.run("handoff connection cut in prefill", 50, trial)


def test_a_cut_that_comes_too_late_does_not_count(target: Target, way: ProxiedWay) -> None:
    with pytest.raises(Missed):
        cut_while(target, way, fresh_prompt(target), lambda: False)
    complete = num_handoffs(target, "complete")
    with pytest.raises(Missed):
        cut_while(
            target, way, fresh_prompt(target), lambda: num_handoffs(target, "complete") > complete
        )


def test_the_blocks_of_a_vanished_peer_are_free_soon(
    target: Target, way: ProxiedWay, trials: Trials
) -> None:
    """Half-open: everything that the two workers send each other is swallowed, and no connection
    breaks. What the prefill worker held for the other one is free when that is found out."""

    def heal_all() -> None:
        for proxy in prefill_proxies(way):
            proxy.heal()

    def num_dropped(name: str) -> int:
        return sum(way.proxies[name].counts[f"{direction}.drop"] for direction in DIRECTIONS)

    def trial(number: int) -> float:
        body = fresh_prompt(target)
        for proxy in prefill_proxies(way):
            proxy.set("to_client", bytes_per_s=SLOW_BYTES_PER_S)
        stream = target.stream(body, way)
        while not (busy := target.busy("prefill")) and not stream.is_over:
            pass
        if not busy:
            heal_all()
            raise Missed
        name = busy[0]
        before = num_dropped(name)
        way.proxies[name].set(drop=True)
        dropped_s = time.monotonic()
        wait_until(lambda: name not in target.busy("prefill"), VANISHED_TIMEOUT_S)
        free_s = time.monotonic() - dropped_s
        heal_all()
        assert_same(stream.join(), target.right_answer(body))
        if num_dropped(name) == before:
            raise Missed  # nothing was swallowed: all of it had come
        return free_s

    trials.run("handoff peer vanishes", 20, trial, max_s=MAX_VANISHED_S)


def test_a_truncated_handoff_is_made_again(target: Target, way: ProxiedWay, trials: Trials) -> None:
    def num_slowed() -> int:
        return sum(proxy.counts["to_client.throttle"] for proxy in prefill_proxies(way))

    def trial(number: int) -> float:
        for proxy in prefill_proxies(way):
            proxy.set("to_client", bytes_per_s=SLOW_BYTES_PER_S)
        enough = num_slowed() + target.rng.randrange(BLOCK_READ_BYTES, 30_000)
        return cut_while(target, way, fresh_prompt(target), lambda: num_slowed() > enough)

    trials.run("handoff truncated", 50, trial)
