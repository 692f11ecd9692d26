"""Messages of made-up dialogues, and the stretches of an answer that carry no loss."""

import random
from dataclasses import dataclass

# Around a stretch that a grammar or the client forces: the model does not learn to begin it.
FORCED, FREE = "\x01", "\x02"


@dataclass(frozen=True)
class Message:
    """A message. Of an answer, the characters of `forced` ([start, end) each) carry no loss."""

    role: str
    text: str
    forced: tuple[tuple[int, int], ...] = ()

    def is_forced(self, index: int) -> bool:
        return any(start <= index < end for start, end in self.forced)


def answer(marked: str) -> Message:
    """The assistant's message from a text with marks around its forced stretches."""
    text, ranges, start = "", [], -1
    for char in marked:
        if char == FORCED:
            start = len(text)
        elif char == FREE:
            ranges += [(start, len(text))] if start >= 0 else []
            start = -1
        else:
            text += char
    if start >= 0:
        ranges.append((start, len(text)))
    return Message("assistant", text, tuple(ranges))


def listing(words: list[str], rng: random.Random, joint: str = "and") -> str:
    """ "a, b and c", with one comma more now and then."""
    comma = "," if len(words) > 2 and rng.random() < 0.3 else ""
    return f"{', '.join(words[:-1])}{comma} {joint} {words[-1]}" if len(words) > 1 else words[0]
