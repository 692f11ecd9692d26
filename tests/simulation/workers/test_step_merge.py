import pytest

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
            merge.add_judged((1, 0), _logprobs(index, num_top=1))
        merge.add_token((1, 0), 0, 9, _logprobs(0))

        steps = [take_step(merge) for _ in range(3)]

    judged = [[one.index for s in step.side for one in s.prompt_logprobs] for step in steps]
    assert judged == [[1, 2], [3, 4], [5]]
    assert [list(step.ids) for step in steps] == [[], [], [9]]
    assert merge.take() is None
