"""The whole batch of a step: its plan as flat arrays, and the copies and masks that go with it."""

from baton.engine.protocol.batch import StepBatch
from baton.engine.sequence.sequence import Sequence
from baton.engine.step.batch_builder import BatchBuilder, probe_batch
from baton.engine.step.engine_state import EngineState
from baton.engine.step.step_plan import StepPlan


class StepBatches:
    """Builds one engine's batches; each is valid until the next."""

    def __init__(self, state: EngineState, max_step_tokens: int) -> None:
        info = state.info
        max_blocks = info.kv_spec.num_blocks_for(info.max_model_len)
        self._state = state
        self._builder = BatchBuilder(info.max_num_seqs, max_step_tokens, max_blocks)

    def build(self, step: int, plan: StepPlan) -> StepBatch:
        """The batch of a plan that is not empty."""
        state, manager = self._state, self._state.manager
        if plan.is_probe:
            return probe_batch(step, state.info.num_blocks)
        batch = self._builder.build(step, plan)
        batch.block_copies = manager.take_block_copies()
        batch.imported_blocks = manager.take_imported_blocks()
        batch.exported_blocks = self._exported_blocks(plan)
        if state.grammars is not None:
            batch.masks = state.grammars.masks(plan.sequences)
        return batch

    def _exported_blocks(self, plan: StepPlan) -> list[int]:
        """Blocks of prompts that the front reads in the shared pool and that become final now."""
        manager = self._state.manager
        exported: list[int] = []
        if self._state.device is not None:
            # The blocks of an earlier prompt may never have been there.
            for seq in plan.started:
                if _is_staged(seq):
                    exported += manager.computed_blocks(seq)
        for scheduled in plan.sequences:
            if _is_staged(scheduled.seq):
                exported += manager.written_blocks(scheduled.seq, scheduled.num_new_tokens)
        return exported


def _is_staged(seq: Sequence) -> bool:
    """The front reads the prompt's blocks in the shared pool."""
    return seq.request.kind == "prefill" and seq.request.checksum_every is None
