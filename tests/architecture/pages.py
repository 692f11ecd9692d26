"""Pages as GitHub shows them."""

import re
from collections import Counter


def without_code(page: str) -> str:
    """The page without its fenced blocks, in which nothing is a heading or a link."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The fragments that links may name, made of the headings; one that comes again is numbered."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in headings]
    seen: Counter[str] = Counter()
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', page))
    for text in plain:
        anchor = re.sub(r"[^\w -]", "", text).lower().replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def links(page: str) -> set[str]:
    """What the page links to and shows, within this repository."""
    text = without_code(page)
    # Text between backticks is no link.
    text = re.sub(r"`[^`\n]*`(?!\])", "", text)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    found += re.findall(r'<(?:img|a|source)[^>]* (?:src|href|srcset)="([^"]+)"', text)
    found += re.findall(r"^\[[^\]]+\]: (\S+)", text, re.MULTILINE)
    return {target for target in found if "://" not in target and ":" not in target.split("/")[0]}
