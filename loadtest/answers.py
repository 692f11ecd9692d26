"""A streamed answer, read line by line: the times of its text, the server's counts, its end.

Times are seconds of one monotonic clock. A gap is between two events that bring text; with
speculation an event may bring several tokens, so rates go by the server's own count.
"""

import msgspec

_DONE = b"[DONE]"
_MAX_SHOWN_CHARS = 200
# Events that are read within this time of the first were there together: nobody saw them apart.
_TOGETHER_S = 0.001


class AnswerError(Exception):
    """The stream did not end as a stream must; the message is fit for a report."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class StreamedAnswer:
    """One answer as it arrives. `origin_s` is the time since which its user waits."""

    def __init__(self, origin_s: float) -> None:
        self.origin_s = origin_s
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.first_text_s = 0.0
        self.last_text_s = 0.0
        # The arrival of its last token: control tokens have no text.
        self.last_token_s = 0.0
        self.num_text_events = 0
        self._num_together = 0
        self._pieces: list[str] = []
        self._is_done = False

    def feed(self, line: bytes, now_s: float) -> float | None:
        """Take in one line of the stream. For text: seconds since the text before it, or since the
        origin for the first. Raises AnswerError for an error event and for a malformed one."""
        payload = line.strip()
        if not payload.startswith(b"data:"):
            return None
        payload = payload[5:].lstrip()
        if payload == _DONE:
            self._is_done = True
            return None
        choices = self._choices_of(payload)
        text = "".join(_text_of(choice) for choice in choices)
        if text or any(choice.finish_reason for choice in choices):
            self.last_token_s = now_s
        if not text:
            return None
        self._pieces.append(text)
        before_s = self.last_text_s if self.num_text_events else self.origin_s
        if not self.num_text_events:
            self.first_text_s = now_s
        self.last_text_s = now_s
        self.num_text_events += 1
        self._num_together += now_s - self.first_text_s <= _TOGETHER_S
        return now_s - before_s

    def check_end(self) -> None:
        """Check that the answer is whole, at the end of its connection. Raises AnswerError."""
        if not self._is_done:
            raise AnswerError("the stream ended without [DONE]")
        if not self.num_text_events:
            raise AnswerError("no text in the answer")

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def decode_s(self) -> float:
        """Seconds from the first text to the last token."""
        return self.last_token_s - self.first_text_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 when there is no second one."""
        return self.decode_s / max(self.num_output_tokens - 1, 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first ones over the time to the last one. None if all came together: how
        fast they were made, nobody saw."""
        if self._num_together >= self.num_text_events or not self.decode_s > 0:
            return None
        share = self._num_together / self.num_text_events
        num_first = 1.0 if self._num_together == 1 else share * self.num_output_tokens
        return max(self.num_output_tokens - num_first, 0.0) / self.decode_s

    def _choices_of(self, payload: bytes) -> list[_Choice]:
        try:
            event = _decode(payload)
        except msgspec.DecodeError as error:
            raise AnswerError(f"an event is not JSON: {error}") from error
        if event.error is not None:
            raise AnswerError(event.error.code or event.error.message[:_MAX_SHOWN_CHARS])
        if event.usage is not None:
            self.num_prompt_tokens = event.usage.prompt_tokens
            self.num_output_tokens = event.usage.completion_tokens
        return event.choices


def _text_of(choice: _Choice) -> str:
    delta = choice.delta
    return (delta.content or delta.reasoning_content or "") if delta is not None else ""
