"""Pages as GitHub shows them."""

import re


def anchors(page: str) -> set[str]:
    """The fragments that links may name, made of the headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}
