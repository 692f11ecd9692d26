"""What one Submit asks for, as all its choices share it."""

from dataclasses import dataclass

import msgspec

from baton.engine.messages import Grammar, SamplingParams
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
        """Logprobs of the prompt take logits that only its prefill has: it is not handed over."""
        return not self.submit.prefill_endpoint or self.sampling.num_prompt_logprobs >= 0

    @property
    def shares_prompt(self) -> bool:
        """Its choices begin at the same place: one computes the prompt, the others fork."""
        return not any(emitted.token_ids for emitted in self.submit.emitted)

    @property
    def is_search(self) -> bool:
        """Its choices are the results of one beam search."""
        return self.sampling.beam_width > 0

    def sampling_of(self, choice: int) -> SamplingParams:
        """The prompt is judged once: by choice 0, and not again after its first token."""
        if choice == 0 and not self.emitted_ids(0):
            return self.sampling
        return msgspec.structs.replace(self.sampling, num_prompt_logprobs=-1)

    def use_grammar(self, grammar: Grammar) -> None:
        """The same grammar, as the core and a prefill worker's core want it."""
        self.sampling = msgspec.structs.replace(self.sampling, grammar=grammar)
        if grammar.kind == "ebnf":
            self.submit.sampling.ebnf_grammar = grammar.text

    def emitted_ids(self, choice: int) -> bytes:
        """Output tokens of earlier attempts."""
        for emitted in self.submit.emitted:
            if emitted.choice == choice:
                return emitted.token_ids
        return b""
