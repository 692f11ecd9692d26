"""Control tokens: the spellings that steer the model, a template's own told from a user's.

The template is rendered a second time with the control tokens in its literals written in marked
characters (lone surrogates, which no valid JSON or UTF-8 can contain, one for each character). A
spelling that is marked in the output was written by the template; one that is not came from the
request. Where marks change the output of a template, the request's strings are marked instead.
Knows nothing of jinja2 and nothing of ids.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

_FIRST_MARK = 0xD800
_MAX_MARKS = 2048
# A template may build a control token around one of these roles ('<|' + role + '|>').
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "ipython")


def trie_pattern(words: Iterable[str]) -> str:
    """A regular expression for any of `words`, longest first, as a trie.

    Its time does not depend on their number: an alternation of thousands of words would try each of
    them at every position.
    """
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    root.pop("", None)
    return _pattern_of(root) if root else "(?!)"


def _pattern_of(node: dict[str, Any]) -> str:
    is_end = "" in node
    branches = []
    for char, child in node.items():
        if char == "":
            continue
        prefix = re.escape(char)
        # Chains without a branch stay flat, so that long words do not nest deeply.
        while len(child) == 1 and "" not in child:
            ((char, child),) = child.items()
            prefix += re.escape(char)
        branches.append(prefix + (_pattern_of(child) if len(child) > 1 or "" not in child else ""))
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and not is_end else f"(?:{'|'.join(branches)})"
    return joined + "?" if is_end else joined


def control_tokens(
    added_tokens: Sequence[tuple[str, bool]],
    chat_control_tokens: Sequence[str] | None,
    template_text: str,
) -> list[str]:
    """Spellings that only the template may turn into ids, in the order of their ids.

    Special tokens always are. Other added tokens are when the model lists them or, without such a
    list, when the template spells them out (whitespace aside: templates contain it as plain text).
    """
    if chat_control_tokens is not None:
        listed = set(chat_control_tokens)
        return [text for text, special in added_tokens if special or text in listed]
    return [
        text
        for text, special in added_tokens
        if special or (text in template_text and not text.isspace())
    ]


class ControlMarks:
    """Marks control tokens in a template's literals and finds marked ones in its output.

    Whitespace is never marked, so that trimming works as before. A token of whitespace only cannot
    be told from text and is left alone.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        tokens = [token for token in tokens if token.strip()]
        chars = sorted({char for token in tokens for char in token if not char.isspace()})
        if len(chars) > _MAX_MARKS:
            raise ValueError(f"{len(chars)} different characters in control tokens")
        self._mark_of = {ord(c): _FIRST_MARK + i for i, c in enumerate(chars)}
        self._char_of = {chr(mark): chr(char) for char, mark in self._mark_of.items()}
        self._any_mark = re.compile(f"[{re.escape(''.join(self._char_of))}]" if chars else "(?!)")
        self._spelled = re.compile(trie_pattern(tokens))
        self._marked = re.compile(trie_pattern(self._marked_forms(tokens)))
        self._prefixes = _fragments(token[:i] for token in tokens for i in range(1, len(token)))
        self._suffixes = _fragments(token[i:] for token in tokens for i in range(1, len(token)))
        self._max_fragment = max((len(token) - 1 for token in tokens), default=0)

    def mark_literal(self, text: str) -> str:
        """Mark the control tokens in a template's literal, and the possible parts of one: the first
        characters of a token at its end, the last ones at its beginning."""
        marked = self._spelled.sub(lambda match: self._mark(match[0]), text)
        for length in range(min(self._max_fragment, len(marked)), 0, -1):
            if marked[-length:] in self._prefixes:
                marked = marked[:-length] + self._mark(marked[-length:])
                break
        for length in range(min(self._max_fragment, len(marked)), 0, -1):
            if marked[:length] in self._suffixes:
                return self._mark(marked[:length]) + marked[length:]
        return marked

    def mark_values(self, value: Any, known_words: frozenset[str]) -> Any:
        """Mark the strings of a request's JSON value, keys included.

        `known_words`, which the template reads by name, stay as they are.
        """
        if isinstance(value, str):
            return value if value in known_words else self._mark(value)
        if isinstance(value, dict):
            return {
                self.mark_values(key, known_words): self.mark_values(item, known_words)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.mark_values(item, known_words) for item in value]
        return value

    def unmark(self, text: str) -> str:
        """Replace every mark by the character that it stands for."""
        # Nearly all characters are not marks, and `translate` looks each of them up.
        return self._any_mark.sub(lambda mark: self._char_of[mark[0]], text)

    def written_spans(self, marked_text: str) -> list[int]:
        """Flat [start, end) positions of the control tokens that the template wrote."""
        return _flat_spans(self._marked, marked_text)

    def spelled_spans(self, text: str) -> list[int]:
        """Flat [start, end) positions of all control tokens that `text` spells."""
        return _flat_spans(self._spelled, text)

    def _mark(self, text: str) -> str:
        return text.translate(self._mark_of)

    def _marked_forms(self, tokens: Sequence[str]) -> Iterable[str]:
        for token in tokens:
            yield self._mark(token)
            for role in ROLES:
                before, found, after = token.partition(role)
                if found and before and after:
                    yield self._mark(before) + role + self._mark(after)


def _fragments(parts: Iterable[str]) -> frozenset[str]:
    # Letters and digits alone are words of templates too often to be taken for fragments.
    return frozenset(part for part in parts if not part.isalnum() and part.strip())


def _flat_spans(pattern: re.Pattern[str], text: str) -> list[int]:
    return [position for match in pattern.finditer(text) for position in match.span()]
