"""Stop strings in a stream of text pieces, wherever the pieces' borders fall.

Text that could still become part of a stop string is held back; the stop string itself is sent
only where the request asks for it. Each pattern is followed with its Knuth-Morris-Pratt table, so
the cost of a character does not depend on the patterns' lengths.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopPattern:
    """One stop string and, for each prefix, the length of its longest border."""

    text: str
    borders: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> "StopPattern":
        assert text, "an empty stop string would match everywhere"
        borders, length = [0], 0
        for char in text[1:]:
            while length and char != text[length]:
                length = borders[length - 1]
            if char == text[length]:
                length += 1
            borders.append(length)
        return cls(text, tuple(borders))

    def advance(self, matched: int, char: str) -> int:
        """Length of the pattern's longest prefix that ends with `char`."""
        while matched and char != self.text[matched]:
            matched = self.borders[matched - 1]
        return matched + 1 if char == self.text[matched] else matched


class StopMatcher:
    """Follows one choice's text. `done` at the first stop string that is complete. `is_sent`: the
    stop string is part of the text."""

    def __init__(self, patterns: tuple[StopPattern, ...], *, is_sent: bool = False) -> None:
        self._patterns = patterns
        self._is_sent = is_sent
        self._matched = [0] * len(patterns)
        self._held = ""
        self.done = False

    def feed(self, text: str) -> str:
        """Take in `text`; returns the text that may be sent now. Sets `done` when a stop string is
        complete; after that no text may be fed.
        """
        assert not self.done, "text after the stop"
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            length = self._complete(buffer[position])
            if length:
                self.done = True
                self._held = ""
                return buffer[: position + 1 - (0 if self._is_sent else length)]
        num_sendable = len(buffer) - max(self._matched)
        self._held = buffer[num_sendable:]
        return buffer[:num_sendable]

    def flush(self) -> str:
        """The text that was held back; it is not a stop string, because no text follows."""
        held, self._held = self._held, ""
        return held

    def _complete(self, char: str) -> int:
        """Length of the longest stop string that ends with this character, 0 = none."""
        longest = 0
        for index, pattern in enumerate(self._patterns):
            matched = pattern.advance(self._matched[index], char)
            self._matched[index] = matched
            if matched == len(pattern.text):
                longest = max(longest, matched)
        return longest
