"""What the parts of the engine share: vLLM's core, the sequences, and the news for the front."""

from typing import Any

from baton.engine.kv.handoff_rows import RowLeases
from baton.engine.protocol.messages import (
    AddSequence,
    EngineInfo,
    EngineLoad,
    Finished,
    SequenceRefused,
    StepEvents,
)
from baton.engine.protocol.reasons import FinishReason, RefusalReason
from baton.engines.vllm.adapters import Adapters
from baton.engines.vllm.keyed_cache import KeyedCache
from baton.engines.vllm.ranks.connector import StepCopies
from baton.engines.vllm.sequences import VllmSequence
from baton.engines.vllm.step_bill import StepBill
from baton.system.clock import Clock


class VllmState:
    """Owned by one engine. `core` is vLLM's EngineCore."""

    def __init__(self, core: Any, info: EngineInfo, clock: Clock) -> None:
        self.core = core
        self.scheduler = core.scheduler
        self.info = info
        self.clock = clock
        self.cache = KeyedCache(info.model_fp, info.kv_spec.block_size)
        self.bill = StepBill(clock)
        self.adapters = Adapters(core, info.num_adapter_slots)
        self.copies = StepCopies()
        self.rows = RowLeases(info.num_rows)
        self.seqs: dict[str, VllmSequence] = {}
        self.events = empty_events(0)

    def table(self, seq: VllmSequence) -> list[int]:
        """The sequence's blocks, as vLLM has them."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(seq.name)[0])

    def adapters_in_use(self) -> set[str]:
        """The adapters that some sequence has."""
        return {seq.add.adapter for seq in self.seqs.values()}

    def refuse(self, add: AddSequence, reason: RefusalReason, message: str) -> None:
        """Tell why the sequence is not taken, or cannot go on."""
        self.events.refused.append(SequenceRefused(add.seq_id, reason, message))

    def finish(self, seq_id: int, reason: FinishReason, num_tokens: int, message: str = "") -> None:
        """Tell that the sequence has ended by itself."""
        self.events.finished.append(Finished(seq_id, reason, num_tokens, message))

    def take_token(self, seq_id: int, token: int, index: int) -> None:
        """Tell a sequence's new token."""
        self.events.token_seq_ids.append(seq_id)
        self.events.token_ids.append(token)
        self.events.token_indexes.append(index)

    def forget(self, seq: VllmSequence) -> None:
        """Nothing is told of the sequence any more."""
        del self.seqs[seq.name]
        self.cache.forget(seq.name)
        self.bill.leave(seq.add.seq_id)
        self.rows.free(seq.add.seq_id)


def empty_events(step: int) -> StepEvents:
    """The news when there are none."""
    return StepEvents(step, EngineLoad(0, 0, 0, 0, 0, 0.0, 0.0))
