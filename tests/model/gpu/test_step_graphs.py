"""Which sizes steps have, and that a step without a captured graph runs as it is."""

import torch

from baton.model.gpu.step_graphs import StepGraphs, decode_sizes, token_sizes


def test_sizes_are_1_2_4_then_multiples_of_8_up_to_the_largest_batch():
    assert decode_sizes(1) == [1]
    assert decode_sizes(3) == [1, 2, 3]
    assert decode_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert decode_sizes(30) == [1, 2, 4, 8, 16, 24, 30]


def test_sizes_of_other_steps_end_with_the_largest_step():
    assert token_sizes(60) == [16, 32, 48]
    assert token_sizes(8) == []


def test_a_batch_takes_the_smallest_size_that_holds_it():
    graphs = StepGraphs(decode_sizes(30), torch.device("cpu"), lambda _: None, lambda _: None)
    taken = [graphs.size_for(num_seqs) for num_seqs in (1, 3, 4, 5, 25, 30, 31)]
    assert taken == [1, 4, 4, 8, 30, 30, None]


def test_without_a_gpu_nothing_is_captured_and_steps_run():
    runs = []
    graphs = StepGraphs([1, 2], torch.device("cpu"), runs.append, lambda _: None)
    graphs.capture()
    assert runs == []
    graphs.run(2)
    assert runs == [2]
