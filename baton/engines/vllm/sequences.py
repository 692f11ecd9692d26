"""The sequences of the front as requests of vLLM."""

import time
from array import array
from dataclasses import dataclass, field
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest

from baton.engine.grammar.state import GrammarState
from baton.engine.protocol.messages import AddSequence, EngineInfo
from baton.engine.protocol.reasons import StopReason
from baton.engine.sequence.prompt_lookup import PromptLookup
from baton.engines.vllm.keyed_cache import cache_salt
from baton.engines.vllm.ranks.connector import KIND_KEY
from baton.engines.vllm.row_choice import EXTRA_KEY, RowOptions, TokenArray
from baton.wire.limits import NUM_TOKENS_ALONE


@dataclass(slots=True, eq=False)
class VllmSequence:
    """One sequence: the front's command, vLLM's request, and how far it has come.

    A record, with a field for each thing that a turn asks.
    """

    add: AddSequence
    request: Any
    options: RowOptions
    credit: int
    # Of its next output token.
    next_index: int
    # The block table: of a remote sequence once it has room, of a prefill once the front knows that
    # it has started.
    block_ids: list[int] = field(default_factory=list)
    num_cached_blocks: int = 0
    # The blocks that travel have rows of the staging ring.
    has_rows: bool = False
    grammar: GrammarState | None = None
    # Once it was to be drafted for.
    lookup: PromptLookup | None = None
    tokens: TokenArray | None = None
    # Its prompt is being computed, or has come.
    is_started: bool = False
    is_bound: bool = False
    # It waits for its Release or Abort, and is not computed.
    is_over: bool = False

    @property
    def name(self) -> str:
        """Its request's id at vLLM."""
        return str(self.add.seq_id)

    @property
    def is_parked(self) -> bool:
        """It has no credit for its next token, or is over."""
        return self.is_over or self.next_index >= self.credit

    @property
    def is_suspect(self) -> bool:
        """It has to be computed in steps of its own."""
        add = self.add
        return add.is_suspect and self.next_index < add.num_emitted + NUM_TOKENS_ALONE

    @property
    def is_remote(self) -> bool:
        """Its prompt is on its way."""
        return self.add.kind == "remote" and not self.is_started

    @property
    def lacks_room(self) -> bool:
        """There are no blocks for its prompt, which is on its way."""
        return self.is_remote and not self.block_ids

    @property
    def waits_for_rows(self) -> bool:
        """It is not computed before its blocks can be handed over."""
        return self.add.kind == "prefill" and not self.has_rows

    @property
    def may_expire(self) -> bool:
        """Its deadline ends it; not while the front may be writing into its blocks."""
        is_being_written = self.is_bound and not self.is_started
        has_ended = self.add.kind == "prefill" and self.next_index > self.add.num_emitted
        return not (is_being_written or has_ended or self.is_over)

    @property
    def num_to_compute(self) -> int:
        """Prompt tokens that are still to be computed."""
        request = self.request
        left = int(request.num_tokens - request.num_computed_tokens)
        return left if left > 1 and not self.is_remote else 0

    def take_first_token(self, token: int) -> None:
        """The prefill worker has sampled it: it counts as given, like those of earlier attempts."""
        request = self.request
        request.kv_transfer_params[KIND_KEY] = "local"  # computed here, should it lose its blocks
        request.prompt_token_ids.append(token)
        request._all_token_ids.append(token)
        request.num_prompt_tokens += 1
        request.max_tokens -= 1
        request.update_block_hashes()
        self.options.num_emitted += 1
        self.next_index += 1
        self.is_started = True


def core_request(
    add: AddSequence, options: RowOptions, end_ids: list[int], adapter: LoRARequest | None
) -> EngineCoreRequest:
    """The request that vLLM takes in for a sequence."""
    return EngineCoreRequest(
        request_id=str(add.seq_id),
        prompt_token_ids=array("I", add.token_ids).tolist(),
        mm_features=None,
        sampling_params=_sampling_params(add, options, end_ids),
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=adapter,
        cache_salt=cache_salt(add.cache_key, add.adapter),
        data_parallel_rank=None,
        # The least number goes first; a quiet tenant's goes before others of its priority.
        priority=-(2 * add.priority + add.is_quiet),
    )


def _sampling_params(add: AddSequence, options: RowOptions, end_ids: list[int]) -> SamplingParams:
    """What vLLM itself has to know: all that decides which token comes is in `options`."""
    sampling = add.sampling
    ends = [*sampling.stop_token_ids, *(end_ids if _heeds_end(add) else ())]
    wants_prompt = add.kind == "local" and not add.num_emitted
    return SamplingParams(
        temperature=0.0,
        max_tokens=1 if add.kind == "prefill" else sampling.max_tokens - add.num_emitted,
        stop_token_ids=ends,
        ignore_eos=True,
        logprobs=sampling.num_logprobs,
        prompt_logprobs=sampling.num_prompt_logprobs if wants_prompt else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={EXTRA_KEY: options, "kv_transfer_params": {KIND_KEY: add.kind}},
    )


def _heeds_end(add: AddSequence) -> bool:
    """Nothing but the end may follow what completes a grammar."""
    return not add.sampling.ignore_eos or add.sampling.grammar is not None


def reason_at_start(add: AddSequence, info: EngineInfo) -> StopReason | None:
    """The reason to end at once: an earlier attempt emitted all tokens, and its end was lost."""
    sampling = add.sampling
    if not add.num_emitted:
        return None if sampling.max_tokens else "length"
    ids = array("I", add.token_ids)
    ends = {*sampling.stop_token_ids, *(info.eos_token_ids if _heeds_end(add) else ())}
    if ids[-1] in ends:
        return "stop"
    is_exhausted = add.num_emitted >= sampling.max_tokens or len(ids) >= info.max_model_len
    return "length" if is_exhausted else None
