"""Sequences that this engine cannot serve at all."""

from baton.engine.protocol.messages import AddSequence, EngineInfo, Parameter, SequenceRefused
from baton.engine.step import admission

# What the adapter does not carry over to vLLM.
UNSUPPORTED: tuple[Parameter, ...] = ("use_beam_search", "n", "response_format")


def find_fault(add: AddSequence, info: EngineInfo) -> SequenceRefused | None:
    """Find the reason for which this sequence can never run here, or None."""
    sampling = add.sampling
    asked = {
        "use_beam_search": sampling.beam_width > 0,
        "n": bool(add.forks),
        "response_format": sampling.grammar is not None,
    }
    for name in UNSUPPORTED:
        if asked[name]:
            message = f"{name}: not served by the engine of this model ({info.engine})"
            return SequenceRefused(add.seq_id, "unsupported_parameter", message)
    return admission.find_fault(add, info)
