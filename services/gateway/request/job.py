"""A request that is ready to run, with its principal, its model and its prompt."""

from dataclasses import dataclass

from baton.wire.prefix_hash import TOKEN_BYTES
from services.gateway.openai.generation import GenerationRequest
from services.gateway.request.deadlines import Deadlines
from services.gateway.request.incoming import IncomingRequest
from services.gateway.routing.models import ServedModel
from services.gateway.tenants.auth import Principal
from services.gateway.text.detokenize import TextModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as its model reads it: token ids (u32 little-endian) and the hashes of its blocks.

    `cache_key` names the prefix cache that it shares; `text_model` turns tokens into text again.
    """

    token_ids: bytes
    block_hashes: bytes
    cache_key: bytes
    text_model: TextModel

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The output of a request: the most tokens of a choice, those reserved for it at first, and the
    seed."""

    max_tokens: int
    num_expected_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Job:
    """One request with everything that its attempts need. `request` has its defaults filled in."""

    incoming: IncomingRequest
    deadlines: Deadlines
    principal: Principal
    request: GenerationRequest
    model: ServedModel
    prompt: Prompt
    plan: OutputPlan

    @property
    def request_id(self) -> str:
        return self.incoming.request_id
