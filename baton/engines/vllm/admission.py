"""Sequences that this engine cannot serve, at all or now."""

from baton.engine.protocol.messages import AddSequence, EngineInfo, Parameter, SequenceRefused
from baton.engine.step import admission
from baton.wire.limits import num_extra_slots

# What the adapter does not carry over to vLLM.
UNSUPPORTED: tuple[Parameter, ...] = ("use_beam_search",)

MAX_WAITING = 256


def find_fault(add: AddSequence, info: EngineInfo) -> SequenceRefused | None:
    """Find the reason for which this sequence can never run here, or None."""
    if add.sampling.beam_width:
        message = f"use_beam_search: not served by the engine of this model ({info.engine})"
        return SequenceRefused(add.seq_id, "unsupported_parameter", message)
    return admission.find_fault(add, info)


def find_lack(
    add: AddSequence, max_num_seqs: int, num_taken: int, num_waiting: int
) -> SequenceRefused | None:
    """Find what is used up now, or None: places in the batch, or those in the line before it.

    Routers count on a few more places for a quiet tenant: its prompt comes while an answer ends.
    """
    num_extra = num_extra_slots(max_num_seqs) if add.is_quiet and not add.forks else 0
    # More choices than there are places take turns.
    num_wanted = min(1 + len(add.forks), max_num_seqs)
    if add.kind == "remote" and num_taken + num_wanted > max_num_seqs + num_extra:
        return SequenceRefused(add.seq_id, "no_room", f"{num_taken} places are taken")
    if num_waiting >= MAX_WAITING:
        message = f"{MAX_WAITING} sequences wait already"
        return SequenceRefused(add.seq_id, "overloaded", message)
    return None
