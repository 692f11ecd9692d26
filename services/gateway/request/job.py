"""A request that is ready to run, and its answer as far as it has come."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from baton.wire.prefix_hash import TOKEN_BYTES
from services.gateway.openai.generation import ChatMessages, GenerationRequest
from services.gateway.reasoning.harmony_reasoning import HarmonyReasoning
from services.gateway.reasoning.marked_reasoning import MarkedReasoning, Place, place_behind
from services.gateway.reasoning.reasoning_syntax import HARMONY
from services.gateway.request.incoming import Deadlines, IncomingRequest
from services.gateway.routing.models import ServedModel
from services.gateway.tenants.principal import Principal
from services.gateway.text.choice_text import ChoiceText, ReasoningReader
from services.gateway.text.detokenize import MarkedDecoder, TextModel, TokenTexts
from services.gateway.text.logprob_trail import BytesOf, LogprobTrail
from services.gateway.text.prompt_echo import PromptEcho
from services.gateway.text.stop_strings import StopMatcher, StopPattern
from services.gateway.text.token_details import IdentifiedChoice, name_by_id
from services.gateway.tools.answer_calls import AnswerCalls

# Tokens at the end of a prompt that may hold a mark of reasoning, in pieces at most.
_END_TOKENS = 24
# Tokens before a plain completion that decide whether its first token starts with a space.
_CONTEXT_TOKENS = 6


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

    @property
    def first_place(self) -> Place:
        """The part of an answer that comes first."""
        syntax = self.text_model.reasoning_syntax
        if syntax is None:
            return Place.ANSWER
        end = array("I", self.token_ids[-_END_TOKENS * TOKEN_BYTES :]).tolist()
        return place_behind(self.text_model.decoder.decode(end, False), syntax)


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The output of a request: the most tokens of a choice, those reserved for it at first, and the
    seed."""

    max_tokens: int
    num_expected_tokens: int
    seed: int


class TokenCounts(NamedTuple):
    """The tokens to hold for a request that is tokenized: of its prompt, or of all its prompts
    together, and of each choice at first; one where no token follows."""

    num_prompt_tokens: int
    num_expected_tokens: int = 1


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """One request of an authenticated client, before its prompt is tokenized. `request` has its
    defaults filled in."""

    incoming: IncomingRequest
    deadlines: Deadlines
    principal: Principal
    request: GenerationRequest
    model: ServedModel
    # The request before its defaults were filled in.
    asked: GenerationRequest

    @property
    def request_id(self) -> str:
        return self.incoming.request_id

    @property
    def priority(self) -> int:
        return self.principal.priority_of(self.request.lateness)

    def job(self, prompt: Prompt, plan: OutputPlan) -> "Job":
        """The request with its prompt and its plan."""
        own = {each.name: getattr(self, each.name) for each in fields(ValidRequest)}
        return Job(**own, prompt=prompt, plan=plan)


@dataclass(frozen=True, slots=True)
class Job(ValidRequest):
    """One request with everything that its attempts need."""

    prompt: Prompt
    plan: OutputPlan


@dataclass(frozen=True, slots=True)
class Answer:
    """The choices of one request, which go on from one attempt to the next. `echo`: None when the
    prompt is not repeated."""

    choices: Sequence[ChoiceText]
    echo: PromptEcho | None
    # None when the model has no tools to call.
    calls: AnswerCalls | None = None

    @property
    def has_open_choices(self) -> bool:
        return None in [choice.finish_reason for choice in self.choices]

    @property
    def has_echo(self) -> bool:
        """True when the echo is complete, or not wanted."""
        return self.echo is None or self.echo.is_complete

    def received(self) -> dict[int, int]:
        """The number of output tokens that reached this gateway, by open choice."""
        return {
            choice.choice: len(choice.token_ids)
            for choice in self.choices
            if choice.finish_reason is None
        }


def begin_answer(job: Job) -> Answer:
    """The answer before its first token."""
    echo = _echo_of(job)
    first_offset = 0 if echo is None else len(echo.text)
    numbers = range(job.request.num_choices)
    choices = [_choice(job, number, first_offset) for number in numbers]
    return Answer(choices, echo, _calls_of(job))


def _calls_of(job: Job) -> AnswerCalls | None:
    prompt, syntax = job.request.prompt, job.prompt.text_model.call_syntax
    if not isinstance(prompt, ChatMessages) or prompt.tools is None or syntax is None:
        return None
    return AnswerCalls(job.request_id, prompt.tools, syntax, job.request.num_choices)


def _echo_of(job: Job) -> PromptEcho | None:
    request, text_model = job.request, job.prompt.text_model
    if not (request.echo or request.extras.of_prompt):
        return None
    return PromptEcho(request, job.prompt.token_ids, text_model, _bytes_of(job))


def _bytes_of(job: Job) -> BytesOf:
    """The names of tokens in logprobs."""
    return name_by_id if job.request.extras.names_by_id else job.prompt.text_model.token_bytes


def _choice(job: Job, choice: int, first_offset: int) -> ChoiceText:
    request = job.request
    stops = None
    if request.stop:
        patterns = tuple(StopPattern.of(stop) for stop in request.stop)
        stops = StopMatcher(patterns, is_sent=request.includes_stop)
    silent_ids = job.model.eos_token_ids | frozenset(request.rules.stop_token_ids)
    kind = IdentifiedChoice if request.extras.counts_tokens else ChoiceText
    trail, reasoning = _trail(job, first_offset), _reasoning_of(job)
    text = kind(choice, _texts(job), stops, silent_ids, trail, reasoning)
    text.is_mute = request.max_tokens == 0
    text.hides_reasoning = not request.shows_reasoning
    return text


def _texts(job: Job) -> TokenTexts:
    context_ids: list[int] = []
    prompt, text_model = job.request.prompt, job.prompt.text_model
    if not isinstance(prompt, ChatMessages) or prompt.continues_final:
        tail = job.prompt.token_ids[-_CONTEXT_TOKENS * TOKEN_BYTES :]
        context_ids = array("I", tail).tolist()
    decoder = text_model.decoder
    if isinstance(prompt, ChatMessages) and (marks := text_model.marks_for(prompt.tools)):
        decoder = MarkedDecoder(decoder, marks)
    skips_special = not job.request.shows_special_tokens
    return TokenTexts(
        decoder,
        context_ids,
        skips_special=skips_special,
        whole_texts=text_model.whole_texts if skips_special else None,
    )


def _reasoning_of(job: Job) -> ReasoningReader | None:
    syntax = job.prompt.text_model.reasoning_syntax
    if syntax is None or not job.request.may_reason:
        return None
    if syntax is HARMONY:
        prompt = job.request.prompt
        return HarmonyReasoning(has_tools=isinstance(prompt, ChatMessages) and bool(prompt.tools))
    place = job.prompt.first_place
    return None if place is Place.ANSWER else MarkedReasoning(syntax, place)


def _trail(job: Job, first_offset: int) -> LogprobTrail | None:
    if job.request.num_logprobs is None:
        return None
    # Programs that score a prompt ask for one token more, and leave out the last entry.
    return LogprobTrail(_bytes_of(job), first_offset, keeps_end=job.request.echo)
