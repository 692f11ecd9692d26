"""Finds runs of characters that a tokenizer would take for one endless word.

A run is a stretch of word characters, of whitespace, or of neither: the longest piece that a
pre-tokenizer keeps together. Merging one of a million characters takes at least a third of a
second.
"""

import re

_RUN = re.compile(r"\w+|\s+|[^\w\s]+")


def has_run_longer_than(text: str, max_chars: int) -> bool:
    """Look for a run of more than `max_chars` characters, at a few positions only."""
    # A run of more than max_chars characters covers one of these positions, and goes on for at
    # least one stride from it.
    stride = max(1, max_chars // 2)
    position = 0
    while position < len(text):
        end = _run_end(text, position)
        if end - position >= stride and end - _run_start(text, position, max_chars) > max_chars:
            return True
        position = max(position + stride, end - end % stride)
    return False


def _run_end(text: str, position: int) -> int:
    match = _RUN.match(text, position)
    assert match is not None
    return match.end()


def _run_start(text: str, position: int, max_chars: int) -> int:
    """The beginning of the run around `position`, or max_chars + 1 before it if that is nearer."""
    backwards = text[max(0, position - max_chars) : position + 1][::-1]
    return position - (_run_end(backwards, 0) - 1)
