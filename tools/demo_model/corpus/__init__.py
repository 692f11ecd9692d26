"""The corpus, all of it written for this repository: questions and answers about LLM serving.

One file per area, each a list of (kind, forms, answer[, own questions]); see `tools/demo_model/templates.py` for the kinds.
"""

import importlib
import pkgutil

from tools.demo_model.templates import Entry

# The questions that README and docs show. They are always trained and must all be right.
SHOWCASE = [
    "What is TTFT?",
    "Explain backpressure in simple terms.",
    "Why are output tokens dearer than input tokens?",
    "Tell me the life of a request.",
    "What is Baton?",
]


def load_entries() -> list[Entry]:
    """Every area's entries, in order of file name."""
    made: list[Entry] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        rows = importlib.import_module(f"{__name__}.{module.name}").TOPICS
        made += [(row[0], row[1], row[2], row[3] if len(row) > 3 else []) for row in rows]
    return made


ENTRIES = load_entries()
