"""/v1/completions: prompts as text or token ids, the answer as JSON or chunks."""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from baton.wire.failures import BatonError, InvalidRequest
from services.gateway.openai import limits, logprob_objects, sse
from services.gateway.openai.collected import CollectedChoice, JsonList, RunningUsage, filled
from services.gateway.openai.decoding import decode_object, described, to_struct, unsupported_field
from services.gateway.openai.errors import choice_error, error_body
from services.gateway.openai.generation import (
    BestOf,
    Delta,
    Extras,
    GenerationRequest,
    Identity,
    PlainText,
    PromptTokens,
    Usage,
)
from services.gateway.openai.shared_fields import (
    HARMLESS_VALUES,
    SharedFields,
    extras_of,
    sampling_of,
    search_of,
    structure_of,
    usage_object,
)

# OpenAI's own default of this endpoint.
DEFAULT_MAX_TOKENS = 16

UNSUPPORTED = {
    **HARMLESS_VALUES,
    "suffix": ("",),
}


class CompletionFields(SharedFields):
    """The supported fields of a completion request."""

    prompt: Any
    max_tokens: limits.MaxTokensOrNone | None = None
    echo: bool | None = None
    logprobs: limits.NumLogprobs | None = None
    best_of: limits.NumChoices | None = None


def parse(body: bytes) -> GenerationRequest:
    """The request in a completion's body. Raises InvalidRequest."""
    fields = to_struct(decode_object(body), CompletionFields, UNSUPPORTED)
    if fields.max_tokens == 0 and not fields.echo:
        raise InvalidRequest("max_tokens: got 0; only with echo true", param="max_tokens")
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    prompts = prompts_of(fields.prompt, "prompt", limits.MAX_PROMPTS)
    best_of, sampling = _best_of(fields), sampling_of(fields, max_tokens, structure_of(fields))
    if best_of is not None:
        sampling["num_choices"] = fields.best_of
    _check_choices(len(prompts), sampling["num_choices"])
    return GenerationRequest(
        endpoint="completions",
        model=fields.model,
        prompt=prompts[0],
        prompts=prompts if len(prompts) > 1 else (),
        best_of=best_of,
        num_logprobs=0 if best_of and fields.logprobs is None else fields.logprobs,
        search=search_of(fields, fields.logprobs),
        echo=bool(fields.echo),
        adds_special_tokens=fields.add_special_tokens,
        num_prompt_logprobs=_num_prompt_logprobs(fields),
        extras=_extras(fields, len(prompts)),
        lateness=fields.priority or 0,
        **sampling,
    )


def _num_prompt_logprobs(fields: CompletionFields) -> int | None:
    """The likeliest tokens that are wanted at each place of the prompt, for any use."""
    wanted = (fields.logprobs if fields.echo else None, fields.prompt_logprobs)
    return max((num for num in wanted if num is not None), default=None)


def _extras(fields: CompletionFields, num_prompts: int) -> Extras:
    extras = extras_of(fields)
    if extras.running_usage and num_prompts > 1:
        why = "does not go with a list of prompts"
        raise unsupported_field("stream_options.continuous_usage_stats", why)
    return extras


def _best_of(fields: CompletionFields) -> BestOf | None:
    """The choices to tell, if they are fewer than those to produce. Raises InvalidRequest."""
    num_told = fields.n or 1
    if fields.best_of is None or fields.best_of == num_told:
        return None
    if fields.best_of < num_told:
        raise InvalidRequest(
            f"best_of: got {fields.best_of}; expected n, which is {num_told}, or more",
            param="best_of",
        )
    if fields.stream:
        raise unsupported_field("best_of", "does not go with stream")
    if fields.use_beam_search:
        raise unsupported_field("best_of", "does not go with use_beam_search")
    return BestOf(num_told, fields.logprobs is not None)


def prompts_of(given: Any, field: str, most: int) -> tuple[PlainText | PromptTokens, ...]:
    """The prompts in a field, of which there is one or a list. Raises InvalidRequest."""
    if not isinstance(given, list) or not given or not isinstance(given[0], (str, list)):
        return (_prompt(given, field),)
    if len(given) > most:
        message = f"{field}: got {len(given)} {field}s; expected at most {most}"
        raise InvalidRequest(message, param=field)
    if len(given) == 1:
        return (_prompt(given[0], field),)
    return tuple(_prompt(each, f"{field}[{index}]") for index, each in enumerate(given))


def _prompt(given: Any, place: str) -> PlainText | PromptTokens:
    if isinstance(given, str) and given:
        return PlainText(given)
    if isinstance(given, list) and given and not isinstance(given[0], (str, list)):
        return PromptTokens(_token_ids(given, place))
    raise InvalidRequest(
        f"{place}: got {described(given)}; expected text or a list of token ids", param=place
    )


def _token_ids(ids: list[Any], place: str) -> bytes:
    try:
        checked = msgspec.convert(ids, limits.PromptTokenIds)
    except msgspec.ValidationError:
        for index, value in enumerate(ids):
            if type(value) is not int or not 0 <= value < 2**32:
                raise InvalidRequest(
                    f"{place}[{index}]: got {described(value)}; expected a token id",
                    reason="invalid_token_id",
                    param=f"{place}[{index}]",
                ) from None
        raise InvalidRequest(f"{place}: got {len(ids)} token ids", param=place) from None
    return array("I", checked).tobytes()


def _check_choices(num_prompts: int, num_choices: int) -> None:
    num = num_prompts * num_choices
    if num_prompts > 1 and num > limits.MAX_CHOICES_OF_LIST:
        raise InvalidRequest(
            f"prompt: {num_prompts} prompts with {num_choices} choices each; expected at most "
            f"{limits.MAX_CHOICES_OF_LIST} choices together",
            param="prompt",
        )


class Ranking:
    """The choices of each prompt by the mean logprob of their tokens."""

    def __init__(self, best_of: BestOf, num_choices: int) -> None:
        self._best_of = best_of
        self._num_choices = num_choices
        self._logprobs: defaultdict[int, list[float]] = defaultdict(list)

    def add(self, delta: Delta) -> None:
        """Add the logprobs of a choice's next tokens; those of the prompt do not count."""
        if delta.details is None or not delta.details.is_prompt:
            self._logprobs[delta.choice] += [each.logprob or 0.0 for each in delta.logprobs]

    def told(self, num: int) -> Iterator[int]:
        """The best choices of all `num`, those of one prompt after those of the other."""
        for first in range(0, num, self._num_choices):
            choices = range(first, first + self._num_choices)
            yield from sorted(choices, key=self._mean, reverse=True)[: self._best_of.num_told]

    def _mean(self, choice: int) -> float:
        logprobs = self._logprobs[choice]
        return sum(logprobs) / len(logprobs) if logprobs else -math.inf


class CompletionAnswer:
    """One answer in completion form; chunks and whole answers have one shape."""

    def __init__(self, identity: Identity, request: GenerationRequest) -> None:
        self._identity = identity
        self._include_usage = request.include_usage
        self._extras = request.extras
        self._running: RunningUsage | None = None
        if request.extras.running_usage:
            self._running = RunningUsage(identity.num_prompt_tokens)
        self._has_logprobs = request.num_logprobs is not None
        self._ranking: Ranking | None = None
        if request.best_of is not None:
            self._has_logprobs = request.best_of.shows_logprobs
            self._ranking = Ranking(request.best_of, request.num_choices)
        self._collected = [
            CollectedChoice(choice, logprob_objects.completion_object)
            for choice in range(identity.num_choices)
        ]
        self._templates = [
            sse.TextTemplate(self._chunk(Delta(choice, sse.TextTemplate.MARK)))
            for choice in range(identity.num_choices)
        ]

    def opening(self) -> bytes:
        return b""

    def deltas(self, batch: list[Delta]) -> bytes:
        events = []
        for delta in batch:
            if delta.finish_reason or delta.logprobs or delta.details:
                events.append(sse.data_event(self._chunk(delta)))
            else:
                events.append(self._templates[delta.choice].render(delta.text))
        return b"".join(events)

    def closing(self, usage: Usage) -> list[bytes]:
        if not self._include_usage:
            return [sse.DONE]
        return [sse.data_event(self._frame([], usage_object(usage))) + sse.DONE]

    def failure(self, error: BatonError) -> list[bytes]:
        return [b"data: " + error_body(error) + b"\n\n"]

    def collect(self, batch: list[Delta]) -> None:
        for delta in batch:
            self._collected[delta.choice].add(delta)
            if self._ranking is not None:
                self._ranking.add(delta)

    def whole(self, usage: Usage) -> list[bytes]:
        told = self._collected
        if self._ranking is not None:
            told = [told[choice] for choice in self._ranking.told(len(told))]
        entries = [self._whole_choice(choice, index) for index, choice in enumerate(told)]
        body = msgspec.json.encode(
            {**self._head(), "choices": entries, "usage": usage_object(usage)}
        )
        return filled(body, self._lists(told))

    def _whole_choice(self, choice: CollectedChoice, index: int) -> dict[str, Any]:
        logprobs = choice.logprob_marks if self._has_logprobs else None
        entry = _choice_object(replace(choice.delta, choice=index), logprobs)
        if self._extras.of_prompt:
            entry |= choice.details.of_prompt(self._extras)
        return entry | (choice.details.of_answer() if self._extras.token_ids else {})

    def _lists(self, told: list[CollectedChoice]) -> Iterator[JsonList]:
        """The lists of these choices in the order of their marks."""
        for choice in told:
            if self._has_logprobs:
                yield from choice.logprob_lists
            if self._extras.of_prompt:
                yield from choice.details.lists_of_prompt(self._extras)

    def _chunk(self, delta: Delta) -> object:
        logprobs = logprob_objects.completion_object(delta.logprobs) if delta.logprobs else None
        entry = _choice_object(delta, logprobs)
        if delta.details is not None and self._extras.token_ids:
            name = "prompt_token_ids" if delta.details.is_prompt else "token_ids"
            entry[name] = delta.details.token_ids
        usage = None if self._running is None else self._running.after(delta)
        return self._frame([entry], usage)

    def _frame(self, choices: list[object], usage: object) -> object:
        frame = {**self._head(), "choices": choices}
        return {**frame, "usage": usage} if self._include_usage else frame

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._identity.request_id}",
            "object": "text_completion",
            "created": self._identity.created_unix_s,
            "model": self._identity.model,
            "system_fingerprint": self._identity.system_fingerprint,
        }


def _choice_object(choice: Delta, logprobs: object) -> dict[str, Any]:
    return {
        "index": choice.choice,
        "text": choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        **choice_error(choice.spent_budget),
    }
