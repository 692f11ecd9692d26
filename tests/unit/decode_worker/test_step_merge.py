"""Tokens on their way to one gateway, merged into frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.v1 import worker_pb2
from services.decode_worker import step_merge
from services.decode_worker.step_merge import StepMerge


def take_step(merge: StepMerge) -> worker_pb2.Step:
    frame = merge.take()
    assert frame is not None
    return frame.step


def test_one_token_each_needs_no_counts() -> None:
    merge = StepMerge()
    merge.add_token((1, 0), 5, 100)
    merge.add_token((2, 1), 0, 200)

    step = take_step(merge)

    assert (list(step.handles), list(step.choices)) == ([1, 2], [0, 1])
    assert (list(step.first_index), list(step.ids)) == ([5, 0], [100, 200])
    assert list(step.counts) == []
    assert merge.take() is None


def test_tokens_of_several_steps_become_one_entry() -> None:
    merge = StepMerge()
    for index in range(3):
        merge.add_token((1, 0), 7 + index, index)
    merge.add_token((2, 0), 0, 9)

    step = take_step(merge)

    assert (list(step.first_index), list(step.counts)) == ([7, 0], [3, 1])
    assert list(step.ids) == [0, 1, 2, 9]


def test_a_finish_never_leaves_before_the_last_tokens() -> None:
    merge = StepMerge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "MAX_FRAME_ENTRIES", 1)
        merge.add_token((1, 0), 0, 1)
        merge.add_token((2, 0), 0, 2)
        merge.add_finish((2, 0), worker_pb2.Finish(reason="stop"))

        first, second = take_step(merge), take_step(merge)

    assert (list(first.handles), len(first.side)) == ([1], 0)
    assert (list(second.handles), second.side[0].finish.reason) == ([2], "stop")


def test_a_gap_between_tokens_is_our_bug() -> None:
    merge = StepMerge()
    merge.add_token((1, 0), 0, 1)
    with pytest.raises(AssertionError):
        merge.add_token((1, 0), 2, 1)


def _logprobs(index: int, num_top: int = 0) -> worker_pb2.TokenLogprobs:
    return worker_pb2.TokenLogprobs(
        index=index, logprob=-1.0, top_ids=[1] * num_top, top_logprobs=[-1.0] * num_top
    )


def test_logprobs_leave_with_their_tokens_and_a_finish_after_them() -> None:
    merge = StepMerge()
    for index in range(3):
        merge.add_token((1, 0), 7 + index, index, _logprobs(7 + index))
    merge.add_token((2, 0), 0, 5)
    merge.add_finish((1, 0), worker_pb2.Finish(reason="stop"))

    step = take_step(merge)

    [side] = step.side
    assert (side.handle, [one.index for one in side.logprobs]) == (1, [7, 8, 9])
    assert side.finish.reason == "stop"
    assert list(step.handles) == [1, 2]


def test_a_frame_of_logprobs_is_bounded() -> None:
    merge = StepMerge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "MAX_FRAME_LOGPROBS", 10)
        for handle in range(4):
            for index in range(2):
                merge.add_token((handle, 0), index, 9, _logprobs(index, num_top=2))

        steps = [take_step(merge), take_step(merge)]

    assert [list(step.handles) for step in steps] == [[0, 1], [2, 3]]
    assert merge.take() is None


def test_judged_prompt_tokens_leave_in_order_and_before_every_token() -> None:
    merge = StepMerge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "MAX_FRAME_LOGPROBS", 4)
        for index in range(1, 6):
            merge.add_prompt_logprobs((1, 0), _logprobs(index, num_top=1))
        merge.add_token((1, 0), 0, 9, _logprobs(0))

        steps = [take_step(merge) for _ in range(3)]

    judged = [[one.index for s in step.side for one in s.prompt_logprobs] for step in steps]
    assert judged == [[1, 2], [3, 4], [5]]
    assert [list(step.ids) for step in steps] == [[], [], [9]]
    assert merge.take() is None


def test_a_finish_waits_until_the_whole_prompt_is_judged() -> None:
    merge = StepMerge()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "MAX_FRAME_LOGPROBS", 2)
        for index in range(1, 4):
            merge.add_prompt_logprobs((1, 0), _logprobs(index))
        merge.add_finish((1, 0), worker_pb2.Finish(reason="length"))

        steps = [take_step(merge), take_step(merge)]

    finishes = [[side.HasField("finish") for side in step.side] for step in steps]
    assert finishes == [[False], [False, True]]


def test_a_prefill_summary_leaves_with_the_first_tokens() -> None:
    merge = StepMerge()
    merge.add_prefill((1, 0), worker_pb2.PrefillSummary(num_cached_tokens=32))
    merge.add_token((1, 0), 0, 9)

    step = take_step(merge)

    assert (step.side[0].prefill.num_cached_tokens, list(step.ids)) == (32, [9])


def test_a_frame_bears_the_number_of_the_newest_step() -> None:
    merge = StepMerge()
    merge.step = 7
    merge.add_token((1, 0), 0, 9)
    merge.step = 8

    assert take_step(merge).step == 8


KEYS = st.tuples(st.integers(1, 3), st.integers(0, 2))
# Most are tokens; the frame that is taken now and then has little room.
ACTS = st.lists(
    st.tuples(st.sampled_from(["token", "token", "logprobs", "judged", "finish", "take"]), KEYS),
    max_size=60,
)


@given(acts=ACTS)
def test_whatever_waits_arrives_once_in_order_and_a_finish_last(
    acts: list[tuple[str, tuple[int, int]]],
) -> None:
    merge, reader = StepMerge(), Reader()
    sent: dict[tuple[int, int], int] = {}
    num_prompt_logprobs_seen: dict[tuple[int, int], int] = {}
    finished: set[tuple[int, int]] = set()
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("MAX_FRAME_ENTRIES", "MAX_FRAME_TOKENS", "MAX_FRAME_LOGPROBS"):
            patch.setattr(step_merge, limit, 3)
        for act, key in acts:
            if act == "take":
                reader.take(merge.take())
            elif key in finished:
                continue
            elif act == "finish":
                finished.add(key)
                merge.add_finish(key, worker_pb2.Finish(num_output_tokens=sent.get(key, 0)))
            elif act == "judged" and key not in sent:
                num_prompt_logprobs_seen[key] = num_prompt_logprobs_seen.get(key, 0) + 1
                merge.add_prompt_logprobs(key, _logprobs(num_prompt_logprobs_seen[key]))
            else:
                index = sent[key] = sent.get(key, 0) + 1
                logprobs = _logprobs(index - 1) if act == "logprobs" else None
                merge.add_token(key, index - 1, 100 + index - 1, logprobs)
        while (frame := merge.take()) is not None:
            reader.take(frame)

    assert {key: len(ids) for key, ids in reader.ids.items()} == sent
    assert {key: len(told) for key, told in reader.judged.items()} == num_prompt_logprobs_seen
    assert reader.finished == finished


class Reader:
    """Takes frames as a gateway does, and checks their order and their bounds."""

    def __init__(self) -> None:
        self.ids: dict[tuple[int, int], list[int]] = {}
        self.judged: dict[tuple[int, int], list[int]] = {}
        self.finished: set[tuple[int, int]] = set()

    def take(self, frame: worker_pb2.WorkerFrame | None) -> None:
        if frame is None:
            return
        step = frame.step
        assert len(step.handles) <= 3
        assert step.handles or step.side, "an empty frame"
        for side in step.side:
            if side.prompt_logprobs:
                key = side.handle, side.choice
                assert key not in {*self.ids, *self.finished}
                judged = self.judged.setdefault(key, [])
                judged += [told.index for told in side.prompt_logprobs]
                assert judged == list(range(1, len(judged) + 1))
        counts = list(step.counts) or [1] * len(step.handles)
        ids = iter(step.ids)
        keys = zip(step.handles, step.choices, strict=True)
        for key, first, count in zip(keys, step.first_index, counts, strict=True):
            got = self.ids.setdefault(key, [])
            assert first == len(got)
            got += [next(ids) for _ in range(count)]
            assert got == list(range(100, 100 + len(got)))
        assert next(ids, None) is None
        self._take_finishes(step)

    def _take_finishes(self, step: worker_pb2.Step) -> None:
        for side in step.side:
            key = side.handle, side.choice
            num_tokens = len(self.ids.get(key, ()))
            assert all(told.index < num_tokens for told in side.logprobs)
            if side.HasField("finish"):
                assert side.finish.num_output_tokens == num_tokens
                assert key not in self.finished
                self.finished.add(key)
