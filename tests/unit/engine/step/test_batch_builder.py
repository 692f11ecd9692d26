from baton.engine.sequence.sequence import Sequence
from baton.engine.step.batch_builder import BatchBuilder
from baton.engine.step.step_plan import StepPlan
from baton.testing.engine_driver import add_sequence


def make_sequence(seq_id: int, num_tokens: int, num_computed: int, blocks: list[int]) -> Sequence:
    seq = Sequence(add_sequence(seq_id, range(num_tokens), choice=seq_id), seq_id, b"r" * 16)
    seq.num_computed_tokens = num_computed
    seq.table.extend(blocks)
    return seq


def test_decodes_and_chunks_become_flat_arrays_padded_with_minus_one():
    builder = BatchBuilder(max_num_seqs=4, max_step_tokens=16, max_blocks_per_seq=8)
    plan = StepPlan(16, 4)
    plan.add(make_sequence(1, 9, 8, [5, 6, 7]), 1)
    plan.add(make_sequence(2, 12, 4, [3, 4]), 3)
    batch = builder.build(step=8, plan=plan)
    assert batch.token_ids.tolist() == [8, 4, 5, 6]
    assert batch.positions.tolist() == [8, 4, 5, 6]
    assert batch.query_starts.tolist() == [0, 1, 4]
    assert batch.context_lens.tolist() == [9, 7]
    assert batch.block_tables.tolist() == [[5, 6, 7], [3, 4, -1]]
    assert [(row.token_row, row.choice, row.output_index) for row in batch.sample_rows] == [
        (0, 1, 0)
    ]


def test_reused_buffers_keep_nothing_of_the_step_before():
    builder = BatchBuilder(max_num_seqs=4, max_step_tokens=16, max_blocks_per_seq=8)
    plan = StepPlan(16, 4)
    plan.add(make_sequence(1, 12, 0, [1, 2, 3, 4]), 12)
    builder.build(step=1, plan=plan)
    plan = StepPlan(16, 4)
    plan.add(make_sequence(2, 2, 0, [9]), 2)
    plan.add(make_sequence(3, 5, 4, [7, 8]), 1)
    batch = builder.build(step=2, plan=plan)
    assert batch.block_tables.tolist() == [[9, -1], [7, 8]]
    assert batch.query_starts.tolist() == [0, 2, 3]
    assert batch.token_ids.tolist() == [0, 1, 4]
