"""The request of one Submit, which all its choices share."""

from dataclasses import dataclass

import msgspec

from baton.engine.protocol.messages import Grammar, SamplingParams
from baton.wire.failures import InvalidRequest
from baton.wire.prefix_hash import TOKEN_BYTES
from baton.wire.v1 import worker_pb2


@dataclass(slots=True)
class AttemptRequest:
    """`submit` still has its fields, but the prompt is in `prompt_ids` and `block_hashes`."""

    submit: worker_pb2.Submit
    prompt_ids: bytes
    block_hashes: bytes
    sampling: SamplingParams
    deadline_s: float | None  # on the worker's clock

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def num_choices(self) -> int:
        return max(1, self.submit.sampling.num_choices)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) // TOKEN_BYTES

    @property
    def prefills_here(self) -> bool:
        """Logprobs of the prompt take logits that only its prefill has: it is not handed over. A
        vector needs nothing but a prefill."""
        submit, sampling = self.submit, self.sampling
        has_all_here = submit.pools or sampling.num_prompt_logprobs is not None
        return has_all_here or not submit.prefill_endpoint

    @property
    def choices(self) -> list[int]:
        """Those that take part: all results of a beam search, else those that did not end."""
        ended = () if self.is_search else self.submit.ended_choices
        return [choice for choice in range(self.num_choices) if choice not in ended]

    @property
    def shares_prompt(self) -> bool:
        """Its choices begin at the same place: one computes the prompt, the others fork."""
        return self.is_search or not any(emitted.token_ids for emitted in self.submit.emitted)

    @property
    def is_search(self) -> bool:
        """Its choices are the results of one beam search, which always begins anew."""
        return self.sampling.beam_width > 0

    def check_earlier(self, max_model_len: int) -> None:
        """Check that the report of earlier attempts is possible. Raises InvalidRequest."""
        named = {*self.submit.ended_choices, *(each.choice for each in self.submit.emitted)}
        if not named <= set(range(self.num_choices)):
            raise InvalidRequest(f"of {self.num_choices} choices {max(named)} cannot have begun")
        if len(set(self.submit.ended_choices)) == self.num_choices:
            raise InvalidRequest("all choices ended in earlier attempts")
        for choice in named:
            num_tokens, rest = divmod(len(self._received_ids(choice)), TOKEN_BYTES)
            if rest or self.num_prompt_tokens + num_tokens > max_model_len:
                raise InvalidRequest(f"choice {choice} cannot have {num_tokens} output tokens")

    def sampling_of(self, choice: int) -> SamplingParams:
        """The prompt is judged once: by choice 0, and not again after its first token."""
        if choice == 0 and not self.emitted_ids(0):
            return self.sampling
        return msgspec.structs.replace(self.sampling, num_prompt_logprobs=None)

    def use_grammar(self, grammar: Grammar) -> None:
        """The same grammar, as the core and a prefill worker's core want it."""
        self.sampling = msgspec.structs.replace(self.sampling, grammar=grammar)
        if grammar.kind == "ebnf":
            self.submit.sampling.ebnf_grammar = grammar.text

    def emitted_ids(self, choice: int) -> bytes:
        """Output tokens of earlier attempts that this one begins behind."""
        return b"" if self.is_search else self._received_ids(choice)

    def num_tokens(self, choice: int) -> int:
        """Tokens that are there before the first one is sampled."""
        return self.num_prompt_tokens + len(self.emitted_ids(choice)) // TOKEN_BYTES

    def num_received(self, choice: int) -> int:
        """Output tokens that the gateway has."""
        return len(self._received_ids(choice)) // TOKEN_BYTES

    def _received_ids(self, choice: int) -> bytes:
        return b"".join(part.token_ids for part in self.submit.emitted if part.choice == choice)


def check_room(submit: worker_pb2.Submit, max_model_len: int) -> None:
    """Output tokens of earlier attempts come in parts, and must end. Raises InvalidRequest."""
    num_bytes = sum(len(part.token_ids) for part in submit.emitted)
    if num_bytes > max_model_len * max(1, submit.sampling.num_choices) * TOKEN_BYTES:
        raise InvalidRequest(f"{num_bytes} bytes of output tokens are more than there can be")
