"""Which sizes decode steps have, and that a step without a captured graph runs as it is."""

import torch

from baton.model.gpu.decode_graphs import DecodeGraphs, graph_sizes


def test_sizes_are_1_2_4_then_multiples_of_8_up_to_the_largest_batch():
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(30) == [1, 2, 4, 8, 16, 24, 30]


def test_a_batch_takes_the_smallest_size_that_holds_it():
    graphs = DecodeGraphs(graph_sizes(30), torch.device("cpu"), lambda _: None, lambda _: None)
    taken = [graphs.size_for(num_seqs) for num_seqs in (1, 3, 4, 5, 25, 30, 31)]
    assert taken == [1, 4, 4, 8, 30, 30, None]


def test_without_a_gpu_nothing_is_captured_and_steps_run():
    runs = []
    graphs = DecodeGraphs([1, 2], torch.device("cpu"), runs.append, lambda _: None)
    graphs.capture()
    assert runs == []
    graphs.run(2)
    assert runs == [2]
