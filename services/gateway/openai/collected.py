"""The parts of an answer that are collected as its text comes.

Logprobs are most of such an answer: 16 choices of 1,000 tokens with 20 likeliest ones each are
25 MB of JSON, and took a second and a half to encode at the end. They are encoded as they come, and
stay in pieces up to the socket.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from services.gateway.openai.generation import (
    CallDelta,
    Delta,
    Extras,
    FinishReason,
    TokenDetails,
    TokenLogprob,
)

# Stands for a list in JSON that is encoded already; JSON itself has no such byte.
_MARK = b"\0"
# Quickly made and copied, and large enough to be worth a write.
PART_BYTES = 64 * 1024
_encode = msgspec.json.Encoder().encode

ColumnsOf = Callable[[Sequence[TokenLogprob]], Mapping[str, Sequence[Any]]]


class JsonList:
    """A JSON list whose members are encoded as they are added."""

    mark = msgspec.Raw(_MARK)

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def add(self, members: Sequence[object]) -> None:
        """Add members, one at least, at the end."""
        piece = _encode(members)[1:-1]
        self.pieces.append(b"," + piece if self.pieces else piece)


def filled(encoded: bytes, lists: Iterable[JsonList]) -> list[bytes]:
    """JSON with these lists in the places of the marks, in order; in pieces."""
    head, *tails = encoded.split(_MARK)
    pieces = [head]
    for tail, each in zip(tails, lists, strict=False):
        pieces += [b"[", *each.pieces, b"]", tail]
    return pieces


async def gathered(pieces: Iterator[bytes], most_bytes: int) -> list[bytes]:
    """Pieces up to one with which they are more than `most_bytes`, or all. Others run between."""
    taken, num_bytes, num_seen = [], 0, 0
    for piece in pieces:
        taken.append(piece)
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            break
        if num_bytes - num_seen > PART_BYTES:
            num_seen = num_bytes
            await asyncio.sleep(0)
    return taken


class CollectedDetails:
    """The details of the tokens of one choice and its prompt."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._prompt_token_ids = JsonList()
        self._prompt_logprobs = JsonList()

    def add(self, details: TokenDetails) -> None:
        """Add those of the next delta."""
        if not details.is_prompt:
            self.token_ids.extend(details.token_ids)
        elif details.token_ids:
            self._prompt_token_ids.add(details.token_ids)
        if details.prompt_logprobs:
            self._prompt_logprobs.add(details.prompt_logprobs)

    def of_prompt(self, extras: Extras) -> dict[str, Any]:
        """The fields of the prompt, each with a mark in the place of its list."""
        return dict.fromkeys(self._lists_of_prompt(extras), JsonList.mark)

    def lists_of_prompt(self, extras: Extras) -> Iterable[JsonList]:
        """The lists of the fields of the prompt, in the same order."""
        return self._lists_of_prompt(extras).values()

    def _lists_of_prompt(self, extras: Extras) -> dict[str, JsonList]:
        lists = {}
        if extras.num_prompt_logprobs is not None:
            lists["prompt_logprobs"] = self._prompt_logprobs
        if extras.token_ids:
            lists["prompt_token_ids"] = self._prompt_token_ids
        return lists

    def of_answer(self) -> dict[str, Any]:
        """The field of the choice itself."""
        return {"token_ids": self.token_ids}


class RunningUsage:
    """The usage so far in each chunk of a stream, as vLLM has it."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt = num_prompt_tokens
        self._num_output = 0

    def after(self, delta: Delta) -> dict[str, int]:
        """The usage with the tokens of this delta."""
        if delta.details is not None and not delta.details.is_prompt:
            self._num_output += len(delta.details.token_ids)
        return self.now()

    def now(self) -> dict[str, int]:
        """The usage so far."""
        return {
            "prompt_tokens": self._num_prompt,
            "completion_tokens": self._num_output,
            "total_tokens": self._num_prompt + self._num_output,
        }


class CollectedChoice:
    """One choice. `columns_of` turns logprobs into lists by name, in the form of one endpoint."""

    def __init__(self, choice: int, columns_of: ColumnsOf) -> None:
        self._choice = choice
        self._columns_of = columns_of
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs = {name: JsonList() for name in columns_of(())}
        self._calls: list[CallDelta] = []
        self._details: CollectedDetails | None = None
        self.finish_reason: FinishReason | None = None
        self.spent_budget = ""

    def add(self, delta: Delta) -> None:
        """Add the next text of this choice."""
        self._texts.append(delta.text)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        if delta.logprobs:
            for name, members in self._columns_of(delta.logprobs).items():
                self._logprobs[name].add(members)
        for call in delta.calls:
            self._add_call(call)
        if delta.details is not None:
            self.details.add(delta.details)
        self.finish_reason = delta.finish_reason
        self.spent_budget = delta.spent_budget

    @property
    def delta(self) -> Delta:
        """All of it but the logprobs."""
        text, calls = "".join(self._texts), tuple(self._calls)
        reasoning = "".join(self._reasoning)
        spent = self.spent_budget
        return Delta(self._choice, text, self.finish_reason, (), spent, calls, reasoning=reasoning)

    @property
    def details(self) -> CollectedDetails:
        """The details of its tokens, for an answer that has any."""
        if self._details is None:
            self._details = CollectedDetails()
        return self._details

    def _add_call(self, call: CallDelta) -> None:
        if call.call_id:
            self._calls.append(call)
        else:
            before = self._calls[-1]
            self._calls[-1] = before._replace(arguments=before.arguments + call.arguments)

    @property
    def logprob_marks(self) -> dict[str, msgspec.Raw]:
        """The marks of the lists of logprobs, by name."""
        return dict.fromkeys(self._logprobs, JsonList.mark)

    @property
    def logprob_lists(self) -> Iterable[JsonList]:
        """The lists of logprobs, in the same order."""
        return self._logprobs.values()


def logprob_lists(choices: Iterable[CollectedChoice]) -> Iterator[JsonList]:
    """The lists of logprobs of all choices, in the order of their marks."""
    return chain.from_iterable(choice.logprob_lists for choice in choices)
