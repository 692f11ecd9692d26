"""The fields of beam search as vLLM has them: use_beam_search, with `n` as the number of beams.

A search takes the likeliest tokens as they are. So fields that choose or change tokens in another
way are refused beside it, by name, unless their value asks for nothing.
"""

from collections.abc import Mapping
from typing import Any

from baton.wire.failures import InvalidRequest
from services.gateway.openai.decoding import unsupported_field
from services.gateway.openai.generation import BeamSearch
from services.gateway.openai.shared_fields import SharedFields

# Field -> values that go with a beam search. None always does.
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}


def search_of(fields: SharedFields, num_logprobs: int | None) -> BeamSearch | None:
    """The search that the fields ask for, if they do. Raises InvalidRequest."""
    if not fields.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(fields, name) is not None:
                raise InvalidRequest(f"{name}: only with use_beam_search true", param=name)
        return None
    for name, harmless in _HARMLESS.items():
        value = getattr(fields, name, None)
        if value is not None and value not in harmless and not _asks_nothing(value):
            raise unsupported_field(name, "does not go with use_beam_search")
    if num_logprobs is not None:
        raise unsupported_field("logprobs", "does not go with use_beam_search")
    penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    return BeamSearch(penalty, fields.early_stopping or False)


def _asks_nothing(value: Any) -> bool:
    """True for a response format that is plain text."""
    return getattr(value, "type", None) == "text"
