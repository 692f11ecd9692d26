"""A request's way through the pipeline, on virtual time."""

import asyncio

import pytest

from baton.wire.failures import (
    AuthenticationFailed,
    InvalidRequest,
    LimitExceeded,
    ModelNotFound,
    Unavailable,
)
from baton.wire.v1 import failure_pb2, quota_pb2
from services.gateway.routing.models import parse_aliases
from tests.unit.gateway.fakes import EOS, Fleet, RecordingSink, simulate, token_bytes

HELD = quota_pb2.LeaseState.STATE_HELD
SHORT = quota_pb2.LeaseState.STATE_SHORT


def test_text_reaches_the_sink_and_the_request_is_settled_with_the_true_counts() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.num_cached = 16
        sink = await fleet.chat()
        assert sink.text() == "Hello there."
        assert sink.reason() == "stop"
        assert sink.usage is not None
        assert sink.usage.num_output_tokens == 13  # the end token counts
        record = fleet.record
        assert (record.tenant, record.key_id, record.model) == ("acme", "key-1", "demo")
        assert record.num_output_tokens == 13
        assert record.num_cached_tokens == 16
        assert record.num_wasted_tokens == 0
        assert record.finish_reason == "stop"
        assert record.num_attempts == 1

    simulate(scenario)


def test_stages_of_the_record_add_up_to_its_wall_time() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.queue_s = 0.25
        fleet.worker.prefill_stages = {"prefill.queue": 0.01, "prefill.compute": 0.03}
        await fleet.chat()
        record = fleet.record
        stages = {stage.name: stage.duration_us for stage in record.stages}
        assert sum(stages.values()) == pytest.approx(record.wall_us, abs=10)
        assert record.wall_us == pytest.approx(0.01e6 + 0.25e6 + 0.05e6 + 13 * 0.01e6, rel=0.02)
        assert stages["queue"] == 250_000
        assert stages["prefill.compute"] == 30_000
        assert {"auth", "validate", "tokenize", "reserve", "pick", "decode"} <= stages.keys()

    simulate(scenario)


def test_the_worker_gets_the_prompt_the_sampling_and_the_prefill_endpoint() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat(temperature=0.5, top_p=0.9, seed=-1, max_tokens=7)
        (submit,) = fleet.worker.submits
        (encoded,) = fleet.tokenizer.encoded
        assert submit.prompt_ids == token_bytes(encoded.chat.messages_json)
        assert submit.num_prompt_tokens == len(submit.prompt_ids) // 4
        assert submit.block_hashes
        assert submit.cache_key == encoded.cache_key
        assert submit.prefill_endpoint == "p1:1"
        assert submit.sampling.temperature == 0.5
        assert submit.sampling.seed == 2**64 - 1
        assert submit.sampling.max_tokens == 7
        assert submit.initial_credit_tokens == 7
        assert (submit.epoch, submit.handle) == (1, 1)

    simulate(scenario)


def test_picks_carry_the_tenant_and_the_weight_of_the_key() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        fleet.quota.principal.weight = 2.5
        await asyncio.sleep(6)
        await fleet.chat()
        assert [pick.weight for pick in fleet.router.picked] == [1.0, 2.5]
        assert {pick.tenant for pick in fleet.router.picked} == {fleet.quota.principal.tenant}

    simulate(scenario)


def test_picks_and_submits_carry_the_priority_of_the_key() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.priority = 9
        await fleet.chat()
        assert fleet.router.picked[-1].priority == fleet.worker.submits[-1].priority == 9

    simulate(scenario)


def test_the_tokenizer_hears_what_the_request_says_about_its_prompt() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await fleet.chat(
            chat_template_kwargs={"a": 1}, continue_final_message=True, add_special_tokens=True
        )
        await fleet.complete(add_special_tokens=False)
        plain, continued, text = fleet.tokenizer.encoded
        assert plain.chat.add_generation_prompt
        assert not plain.HasField("add_special_tokens")
        assert continued.chat.template_kwargs_json == b'{"a":1}'
        assert continued.chat.continue_final_message
        assert not continued.chat.add_generation_prompt
        assert continued.add_special_tokens
        assert text.HasField("add_special_tokens")

    simulate(scenario)


def test_a_client_may_lower_the_priority_of_a_request_and_not_raise_it() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.priority = 9
        for priority in (0, 3, 100, -5):
            await fleet.chat(priority=priority)
        assert [pick.priority for pick in fleet.router.picked] == [9, 6, 0, 9]
        assert [submit.priority for submit in fleet.worker.submits] == [9, 6, 0, 9]

    simulate(scenario)


def test_picks_name_a_session_that_tells_nothing_of_the_clients_own() -> None:
    async def scenario(fleet: Fleet) -> None:
        for key in ("ann", "ann", "bob", None):
            await fleet.chat(prompt_cache_key=key)
        fleet.quota.principal.tenant = "other"
        await asyncio.sleep(6)
        await fleet.chat(prompt_cache_key="ann")
        first, again, bob, none, other = (pick.session for pick in fleet.router.picked)
        assert first == again
        assert len({first, bob, other}) == 3
        assert [len(first), none] == [16, b""]

    simulate(scenario)


def test_a_seed_is_drawn_when_none_is_given() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await fleet.chat()
        first, second = fleet.worker.submits
        assert first.sampling.seed != second.sampling.seed

    simulate(scenario)


@pytest.mark.parametrize(
    ("config", "given", "expected"),
    [
        (None, None, 1.0),
        ({"do_sample": False}, None, 0.0),
        ({"do_sample": True}, None, 1.0),
        ({"do_sample": False}, 0.7, pytest.approx(0.7)),
    ],
)
def test_a_model_that_ships_greedy_is_greedy_by_default(config, given, expected) -> None:
    async def scenario(fleet: Fleet) -> None:
        from tests.unit.gateway.fakes import artifact

        fleet.tokenizer.data = artifact(config)
        fields = {} if given is None else {"temperature": given}
        await fleet.chat(**fields)
        assert fleet.worker.submits[0].sampling.temperature == expected

    simulate(scenario)


def test_max_tokens_ends_with_length() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.chat(max_tokens=5)
        assert (sink.text(), sink.reason()) == ("Hello", "length")
        assert fleet.quota.reserved[0].num_output_tokens == 5
        assert fleet.record.num_output_tokens == 5

    simulate(scenario)


def test_max_tokens_is_capped_by_the_context() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat(max_tokens=1_000_000)
        (submit,) = fleet.worker.submits
        assert submit.sampling.max_tokens == 2048 - submit.num_prompt_tokens

    simulate(scenario)


def test_a_prompt_that_fills_the_context_is_refused_and_counts_as_a_request() -> None:
    async def scenario(fleet: Fleet) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await fleet.chat(messages=[{"role": "user", "content": "x" * 2048}])
        assert caught.value.reason == "context_length_exceeded"
        assert not fleet.router.picked
        record = fleet.record
        assert record.finish_reason == "context_length_exceeded"
        assert (record.num_prompt_tokens, record.num_output_tokens) == (0, 0)

    simulate(scenario)


def test_stop_string_across_token_borders_cancels_and_counts_up_to_the_stop() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["one END two three four"]
        fleet.worker.step_s = 0.001
        sink = await fleet.chat(stop=["END", "never"])
        assert (sink.text(), sink.reason()) == ("one ", "stop")
        assert fleet.record.num_output_tokens == len("one END")
        assert fleet.record.finish_reason == "stop"
        assert [cancel.request_id for cancel in fleet.worker.cancels] == ["r1"]

    simulate(scenario)


def test_the_stop_string_is_part_of_the_answer_where_that_is_asked_for() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["one END two"]
        sink = await fleet.chat(stop=["END"], include_stop_str_in_output=True)
        assert (sink.text(), sink.reason()) == ("one END", "stop")

    simulate(scenario)


def test_tokens_after_the_stop_are_counted_as_wasted() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["abEND" + "x" * 40]
        fleet.worker.step_s = 0.0
        await fleet.chat(stop="END")
        assert fleet.record.num_output_tokens == 5
        assert 0 < fleet.record.num_wasted_tokens <= 41

    simulate(scenario)


def test_choices_are_independent_and_reserved_together() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["first", "second one", "third"]
        sink = await fleet.chat(n=3, max_tokens=20)
        assert [sink.text(i) for i in range(3)] == ["first", "second one", "third"]
        assert fleet.quota.reserved[0].num_output_tokens == 60
        assert fleet.worker.submits[0].sampling.num_choices == 3
        assert fleet.record.finish_reason == "stop,stop,stop"
        assert fleet.record.num_output_tokens == 6 + 11 + 6

    simulate(scenario)


def test_a_stop_string_in_one_choice_leaves_the_others_alone() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["abEND" + "x" * 300, "y" * 200]
        sink = await fleet.chat(n=2, stop="END")
        assert (sink.text(0), sink.text(1)) == ("ab", "y" * 200)
        assert [sink.reason(0), sink.reason(1)] == ["stop", "stop"]
        # The worker was told to stop the one that is not wanted any more, and no other.
        assert [list(cancel.choices) for cancel in fleet.worker.choice_cancels] == [[0]]
        assert fleet.worker.cancels == []
        assert fleet.record.num_output_tokens == 5 + 201
        assert fleet.record.num_wasted_tokens <= 20

    simulate(scenario)


def test_half_a_character_is_never_sent() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["a😀é"]
        sink = await fleet.chat()
        assert sink.text() == "a😀é"
        for batch in sink.batches:
            for delta in batch:
                assert "\ufffd" not in delta.text

    simulate(scenario)


def test_a_character_cut_by_max_tokens_becomes_one_replacement_character() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["a😀"]
        sink = await fleet.chat(max_tokens=3)
        assert sink.text() == "a\ufffd"

    simulate(scenario)


def test_credit_stays_64_tokens_beyond_what_the_client_took() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 500]
        sink = RecordingSink()
        sink.free.clear()
        task = fleet.tasks.create_task(fleet.chat(sink, max_tokens=400))
        await asyncio.sleep(10)
        assert fleet.worker.submits[0].initial_credit_tokens == 64
        assert not fleet.worker.credit_frames
        assert len(sink.batches) == 1
        sink.free.set()
        await task
        assert len(sink.text()) == 400
        steps = [up_to for frame in fleet.worker.credit_frames for up_to in frame.up_to_index]
        assert steps == sorted(steps)
        assert steps[-1] == 400

    simulate(scenario)


def test_without_max_tokens_the_default_is_reserved_and_extended_before_it_runs_out() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1200]
        fleet.worker.step_s = 0.001
        sink = await fleet.chat()
        assert fleet.quota.reserved[0].num_output_tokens == 512
        assert len(sink.text()) == 1200
        wanted = [r.wanted_output_tokens for r in fleet.quota.renewals if r.wanted_output_tokens]
        assert wanted[:2] == [1024, 1536]
        for renewal in fleet.quota.renewals:
            assert renewal.produced_output_tokens <= renewal.used_output_tokens

    simulate(scenario)


def test_a_spent_budget_ends_the_answer_with_length_and_its_record_says_why() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1200]
        fleet.worker.step_s = 0.001
        fleet.quota.on_renewal = lambda r: (512, quota_pb2.LeaseState.STATE_REFUSED)
        fleet.quota.spent_limit = "budget of money of the tenant"
        sink = await fleet.chat()
        assert sink.reason() == "length"
        assert len(sink.text()) == 512
        assert fleet.worker.cancels
        assert fleet.record.finish_reason == "insufficient_quota"
        assert sink.batches[-1][-1].spent_budget == "budget of money of the tenant"

    simulate(scenario)


def test_a_moment_without_tokens_in_the_minute_cuts_no_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1600]
        answers = [(512, SHORT)]

        def answer(renewal: quota_pb2.LeaseRenewal) -> tuple[int, int]:
            wanted = renewal.wanted_output_tokens
            return answers.pop() if wanted and answers else (wanted, HELD)

        fleet.quota.on_renewal = answer
        sink = await fleet.chat()
        assert (len(sink.text()), sink.reason()) == (1600, "stop")

    simulate(scenario)


def test_an_answer_pauses_until_the_minute_has_room_and_goes_on() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        fleet.worker.step_s = 0.001
        fleet.quota.retry_after_ms = 250
        full_until_s = fleet.clock.now() + 12
        fleet.quota.on_renewal = lambda renewal: (
            (512, SHORT)
            if fleet.clock.now() < full_until_s
            else (renewal.wanted_output_tokens, HELD)
        )
        sink = await fleet.chat()
        assert (len(sink.text()), sink.reason()) == (1000, "stop")
        assert 12 < fleet.clock.now() < 14
        assert len(fleet.worker.submits) == 1, "it is not moved to another worker"

    simulate(scenario)


def test_a_pause_that_is_longer_than_the_token_gap_fails_the_request_with_its_reason() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1000]
        fleet.worker.step_s = 0.001
        fleet.quota.retry_after_ms = 250
        fleet.quota.on_renewal = lambda renewal: (512, SHORT)
        fleet.quota.limits = failure_pb2.LimitState(tokens_scope="key")
        fleet.quota.spent_limit = "tokens per minute of the tenant"
        with pytest.raises(LimitExceeded, match=r"^The tokens per minute of the tenant") as caught:
            await fleet.chat()
        assert caught.value.reason == "rate_limit_exceeded"
        assert 20 < fleet.clock.now() < 22
        assert fleet.record.num_output_tokens == 512
        # What was spent of a budget is being restored.
        fleet.quota.spent_limit = ""
        with pytest.raises(Unavailable) as unknown:
            await fleet.chat()
        assert unknown.value.reason == "quota_unavailable"

    simulate(scenario)


def test_a_restart_of_quota_ends_no_answer_of_a_hard_budget() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.limits.hard_budget = True
        fleet.worker.texts = ["x" * 1200]
        running = fleet.tasks.create_task(fleet.chat())
        await asyncio.sleep(3)
        fleet.quota.renewals_open = True
        sink = await running
        assert (len(sink.text()), sink.reason()) == (1200, "stop")

    simulate(scenario, prepare=lambda fleet: setattr(fleet.quota, "renewals_open", False))


def test_a_refusal_while_the_client_is_slow_still_ends_the_answer() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1200]
        fleet.worker.step_s = 0.001
        sink = RecordingSink()
        asked = asyncio.Event()

        def refuse_later(renewal: quota_pb2.LeaseRenewal) -> tuple[int, int]:
            if not renewal.wanted_output_tokens:
                return 512, quota_pb2.LeaseState.STATE_HELD
            asked.set()
            sink.free.clear()
            return 512, quota_pb2.LeaseState.STATE_REFUSED

        fleet.quota.on_renewal = refuse_later
        task = fleet.tasks.create_task(fleet.chat(sink))
        await asked.wait()
        await asyncio.sleep(5)
        sink.free.set()
        await task
        assert (len(sink.text()), sink.reason()) == (512, "length")
        assert fleet.clock.now() < 10

    simulate(scenario)


def test_a_lost_lease_stops_the_request() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1500]
        fleet.quota.on_renewal = lambda r: (0, quota_pb2.LeaseState.STATE_LOST)
        with pytest.raises(Unavailable) as caught:
            await fleet.chat()
        assert caught.value.reason == "quota_unavailable"
        assert fleet.worker.cancels
        assert fleet.record.finish_reason == "quota_unavailable"

    simulate(scenario)


def test_a_request_by_an_alias_is_limited_and_billed_as_the_model() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat(model="nickname")
        (reserved,) = fleet.quota.reserved
        assert (reserved.model, fleet.record.model) == ("demo", "demo")

    simulate(scenario, aliases=parse_aliases(["nickname=demo"]))


def test_without_max_tokens_quota_may_grant_less_than_is_asked_for() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await fleet.chat(max_tokens=700)
        asked = [(each.num_output_tokens, each.min_output_tokens) for each in fleet.quota.reserved]
        assert asked == [(512, 1), (700, 0)], "the client's own maximum stands"

    simulate(scenario)


def test_leases_are_renewed_every_five_seconds() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 200]
        fleet.worker.step_s = 0.1
        await fleet.chat(max_tokens=200)
        assert 3 <= len(fleet.quota.renewals) <= 5

    simulate(scenario)


def test_a_renewal_confirms_what_the_client_has() -> None:
    """The usage record of a gateway that dies shows these counts."""

    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 200]
        fleet.worker.step_s = 0.1
        await fleet.chat(n=2, max_tokens=200)
        produced = [renewal.produced_output_tokens for renewal in fleet.quota.renewals]
        assert produced == sorted(produced)
        assert produced[-2] == pytest.approx(2 * 150, abs=20)

    simulate(scenario)


def test_extensions_are_granted_to_soft_tenants_while_quota_is_away() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * 1200]
        sink = await fleet.chat()
        assert len(sink.text()) == 1200

    simulate(scenario, prepare=lambda fleet: setattr(fleet.quota, "renewals_open", False))


def test_a_hard_budget_fails_when_quota_is_away_for_longer_than_the_token_gap() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.principal.limits.hard_budget = True
        fleet.worker.texts = ["x" * 1200]
        with pytest.raises(Unavailable) as caught:
            await fleet.chat()
        assert caught.value.reason == "quota_unavailable"
        assert fleet.record.num_output_tokens == 512

    simulate(scenario, prepare=lambda fleet: setattr(fleet.quota, "renewals_open", False))


def test_nothing_is_reserved_for_a_bad_key_a_bad_field_or_an_unknown_model() -> None:
    async def scenario(fleet: Fleet) -> None:
        incoming = fleet.incoming("/v1/chat/completions", {}, authorization="Bearer wrong")
        with pytest.raises(AuthenticationFailed):
            await fleet.gateway.pipeline.run(incoming, RecordingSink())
        with pytest.raises(InvalidRequest):
            await fleet.chat(temperature=3)
        with pytest.raises(ModelNotFound):
            await fleet.chat(model="other")
        assert not fleet.quota.reserved
        assert not fleet.quota.settled
        assert not fleet.router.picked

    simulate(scenario)


def test_the_key_is_checked_before_the_body_is_read() -> None:
    async def scenario(fleet: Fleet) -> None:
        async def read_body(need: object) -> bytes:
            raise AssertionError("the body of a stranger is not read")

        changes = {"read_body": read_body, "authorization": None}
        incoming = fleet.incoming("/v1/chat/completions", {}, **changes)
        with pytest.raises(AuthenticationFailed) as caught:
            await fleet.gateway.pipeline.run(incoming, RecordingSink())
        assert caught.value.reason == "missing_api_key"

    simulate(scenario)


def test_a_large_body_is_parsed_away_from_the_event_loop() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        assert fleet.body_parser.num_parsed == 0
        with pytest.raises(InvalidRequest, match="resulted in at least 6450 tokens"):
            await fleet.chat(messages=[{"role": "user", "content": "x" * 100}] * 1000)
        assert fleet.body_parser.num_parsed == 1

    simulate(scenario)


def test_an_exhausted_limit_is_passed_on_with_its_state() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.quota.reserve_failure = LimitExceeded("too many", retry_after_s=1.2)
        with pytest.raises(LimitExceeded):
            await fleet.chat()
        assert not fleet.router.picked
        assert not fleet.quota.settled

    simulate(scenario)


def test_a_failed_pick_settles_the_reservation() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.router.failure = Unavailable("queue full", reason="overloaded", retry_after_s=2)
        with pytest.raises(Unavailable):
            await fleet.chat()
        await asyncio.sleep(0.01)
        assert fleet.record.finish_reason == "overloaded"
        assert fleet.record.num_output_tokens == 0

    simulate(scenario)


def test_cache_salt_changes_the_cache_key_and_prompt_cache_key_does_not() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await fleet.chat(prompt_cache_key="abc")
        await fleet.chat(cache_salt="abc")
        keys = [encoded.cache_key for encoded in fleet.tokenizer.encoded]
        assert keys[0] == keys[1] != keys[2]
        assert all(len(key) == 32 for key in keys)

    simulate(scenario)


def test_the_artifact_is_fetched_once_per_model() -> None:
    async def scenario(fleet: Fleet) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(fleet.chat())
        assert fleet.tokenizer.num_artifacts == 1
        assert fleet.worker.num_dialled == 1
        assert len({submit.handle for submit in fleet.worker.submits}) == 5

    simulate(scenario)


def test_end_tokens_have_no_text_even_when_they_are_ignored_as_an_end() -> None:
    async def scenario(fleet: Fleet) -> None:
        sink = await fleet.chat(ignore_eos=True)
        assert fleet.worker.submits[0].sampling.ignore_eos
        assert chr(EOS) not in sink.text()
        assert sink.text() == "Hello there."

    simulate(scenario)


def test_an_idle_stream_is_closed_with_bye() -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()
        await asyncio.sleep(100)
        assert fleet.worker.said_bye
        await fleet.chat()
        assert fleet.worker.num_dialled == 2

    simulate(scenario)
