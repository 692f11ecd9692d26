"""Options that several kinds of benchmark share, and the page that a report goes into."""

from baton.system.byte_size import parse_bytes


class BadBenchOption(Exception):
    """The message names the option."""


def replace_between_marks(document: str, text: str, mark: str = "bench") -> str:
    """The document with what lies between its marks replaced. Raises BadBenchOption."""
    marks = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    before, begin, rest = document.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise BadBenchOption(f"--into: the file has no {marks[0]} and {marks[1]}")
    return f"{before}{begin}\n{text}{end}{after}"


def bytes_of(option: str, text: str) -> int:
    """An amount of memory. Raises BadBenchOption."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise BadBenchOption(f"{option} {error}") from None


def words_of(option: str, text: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The words of a list with commas. Raises BadBenchOption for one that is not allowed."""
    words = tuple(word for word in text.split(",") if word)
    for word in words:
        if allowed and word not in allowed:
            raise BadBenchOption(f"{option} {word!r}: is none of {', '.join(allowed)}")
    return words
