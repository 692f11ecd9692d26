"""Takes the front's new sequences in, as requests of vLLM."""

from baton.engine.protocol.messages import AddSequence, SequenceRefused
from baton.engines.vllm.admission import find_fault, find_lack
from baton.engines.vllm.masks import Masks
from baton.engines.vllm.row_choice import RowOptions
from baton.engines.vllm.sequences import VllmSequence, core_request, reason_at_start
from baton.engines.vllm.state import VllmState


class Arrivals:
    """The arrivals of one engine."""

    def __init__(self, state: VllmState, masks: Masks) -> None:
        self._state = state
        self._masks = masks

    def add(self, add: AddSequence, num_forks_waiting: int) -> bool:
        """Take a sequence in, or tell why not. Returns whether it is in."""
        state = self._state
        refused = find_fault(add, state.info)
        if refused is None and (reason := reason_at_start(add, state.info)) is not None:
            state.finish(add.seq_id, reason, add.num_emitted)
            return False
        refused = refused or self._find_lack(add, num_forks_waiting) or self._load(add)
        if refused is not None:
            state.events.refused.append(refused)
            return False
        self.take_in(add, add.credit)
        return True

    def take_in(self, add: AddSequence, credit: int) -> VllmSequence:
        """Hand a sequence that was found good to vLLM."""
        state, name = self._state, str(add.seq_id)
        options = RowOptions(add.seq_id, add.choice, add.sampling, add.num_emitted, add.forks)
        state.cache.expect(name, add)
        adapter = state.adapters.request_of(add.adapter)
        wanted = core_request(add, options, state.info.eos_token_ids, adapter)
        request, wave = state.core.preprocess_add_request(wanted)
        seq = VllmSequence(add, request, options, credit, add.num_emitted)
        state.seqs[name] = seq
        self._masks.open(seq)
        state.core.add_request(request, wave)
        return seq

    def _find_lack(self, add: AddSequence, num_forks_waiting: int) -> SequenceRefused | None:
        state = self._state
        scheduler, max_num_seqs = state.scheduler, state.info.max_num_seqs
        num_taken = len(scheduler.running) + len(scheduler.kv_holding_waiting)
        num_taken += sum(seq.lacks_room for seq in state.seqs.values()) + num_forks_waiting
        return find_lack(add, max_num_seqs, num_taken, len(scheduler.waiting))

    def _load(self, add: AddSequence) -> SequenceRefused | None:
        """Load the sequence's adapter, or find the reason for which it cannot be loaded now."""
        if not add.adapter:
            return None
        state = self._state
        was_served = state.adapters.is_served(add.adapter)
        fault = state.adapters.load(add.adapter, state.adapters_in_use())
        if not fault:
            return None
        if was_served and not state.adapters.is_served(add.adapter):
            state.events.adapters = state.adapters.served([(add.adapter, fault)])
        return SequenceRefused(add.seq_id, "no_room", fault)
