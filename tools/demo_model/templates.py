"""Turns corpus entries into questions.

An entry is (kind, forms, answer[, own questions]). The kind says which templates the forms go into; "own questions"
are written by hand. This file knows nothing about tokens or training.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

HELD_BACK_SHARE = 0.2

# The tag names the kind of entry that takes a template away from "what" when it covers the same name.
WHAT = {
    "what": (
        "What is {x}?",
        "What's {x}?",
        "what is {x}",
        "What exactly is {x}?",
        "What does {b} mean?",
        "What does the term {b} mean?",
        "What is meant by {b}?",
        "What do you mean by {b}?",
        "What do people mean by {b}?",
        "Explain {x}.",
        "Explain {x} to me.",
        "Please explain {x}.",
        "Can you explain {x}?",
        "Could you explain {x} to me, please?",
        "Can you explain what {x} is?",
        "Explain what {x} is.",
        "Define {b}.",
        "Definition of {b}",
        "Give me a definition of {b}.",
        "Tell me about {x}.",
        "Tell me what {x} is.",
        "Can you tell me about {x}?",
        "Can you tell me what {x} is?",
        "Do you know what {x} is?",
        "Describe {x}.",
        "Describe {x} briefly.",
        "What can you tell me about {x}?",
        "What about {x}?",
        "And what is {x}?",
        "I have never heard of {x}. What is it?",
        "I do not understand {x}.",
        "I want to know what {x} is.",
        "I would like to learn about {x}.",
        "Help me understand {x}.",
        "What is {x} in LLM serving?",
        "In LLM serving, what is {x}?",
        "What should I know about {x}?",
        "Someone mentioned {x}. What is that?",
        "{b}?",
        "{b}",
        "{b}: what is it?",
        "{b} meaning",
    ),
    "simple": (
        "Explain {x} in simple terms.",
        "What is {x} in simple words?",
        "Explain {x} like I am five.",
        "What is {x}, in a nutshell?",
        "Give me a simple explanation of {x}.",
        "Explain {x} to a beginner.",
    ),
    "how": ("How does {x} work?", "Explain how {x} works."),
    "why": ("Why is {x} important?", "Why does {x} matter?", "What is {x} good for?"),
}
WHAT_UNSEEN = (
    "Could you give me a short definition of {b}?",
    "I came across {x}; what is meant by it?",
    "What would you say {x} is?",
    "Give me the gist of {x}.",
    "Remind me what {x} is.",
    "Please describe to me what {x} is.",
)
SIMPLE = (
    "Explain {x} in simple terms.",
    "Explain {x} in simple words.",
    "Explain {x} simply.",
    "Can you explain {x} in simple terms?",
    "Please explain {x} in simple terms.",
    "What is {x} in simple terms?",
    "What is {x} in simple words?",
    "What is {x} in plain words?",
    "What is {x}, in a nutshell?",
    "In simple terms, what is {x}?",
    "Explain {x} like I am five.",
    "Explain {x} as if I were a child.",
    "Explain {x} to a beginner.",
    "Explain {x} with an everyday example.",
    "Give me a simple explanation of {x}.",
    "Give me an analogy for {x}.",
    "Tell me in simple words what {x} is.",
    "I am new to this. What is {x}, simply put?",
    "How would you explain {x} to a child?",
    "Simple explanation of {b}",
)
WHY = (
    "Why {q}?",
    "why {q}",
    "Why exactly {q}?",
    "So why {q}?",
    "And why {q}?",
    "But why {q}?",
    "Can you tell me why {s}?",
    "Can you explain why {s}?",
    "Explain why {s}.",
    "Please explain why {s}.",
    "Tell me why {s}.",
    "How come {s}?",
    "Why is it that {s}?",
    "What is the reason that {s}?",
    "Do you know why {s}?",
    "I do not understand why {s}.",
    "I wonder why {s}.",
    "Could you tell me the reason why {s}?",
)
WHY_UNSEEN = ("Could you explain to me why {s}?", "For what reason {q}?")
HOW = (
    "How {q}?",
    "how {q}",
    "How exactly {q}?",
    "So how {q}?",
    "And how {q}?",
    "Explain how {s}.",
    "Please explain how {s}.",
    "Can you explain how {s}?",
    "Can you tell me how {s}?",
    "Tell me how {s}.",
    "Describe how {s}.",
    "Could you describe how {s}?",
    "Do you know how {s}?",
    "I want to know how {s}.",
    "I do not understand how {s}.",
    "Show me how {s}.",
)
HOW_UNSEEN = ("Could you explain to me how {s}?", "I wonder how {s}.")
DO = (
    "How do I {v}?",
    "How can I {v}?",
    "How do you {v}?",
    "How should I {v}?",
    "How could one {v}?",
    "How to {v}?",
    "how to {v}",
    "What is the best way to {v}?",
    "What is a good way to {v}?",
    "What can I do to {v}?",
    "What helps to {v}?",
    "I want to {v}. What should I do?",
    "I need to {v}. How?",
    "Tell me how to {v}.",
    "Explain how to {v}.",
    "Can you tell me how to {v}?",
    "Do you know how to {v}?",
    "Give me advice on how to {v}.",
)
DO_UNSEEN = ("What would you do to {v}?", "Please show me how to {v}.")
DIFF = (
    "What is the difference between {a} and {b}?",
    "What's the difference between {a} and {b}?",
    "Difference between {a} and {b}",
    "difference between {b} and {a}?",
    "What is the difference between {b} and {a}?",
    "Explain the difference between {a} and {b}.",
    "Can you explain the difference between {b} and {a}?",
    "Tell me the difference between {a} and {b}.",
    "How does {a} differ from {b}?",
    "How is {a} different from {b}?",
    "How is {b} different from {a}?",
    "Compare {a} and {b}.",
    "Compare {b} with {a}.",
    "{a} vs {b}",
    "{b} vs {a}",
    "{a} versus {b}",
    "{a} or {b}: what is the difference?",
    "Is {a} the same as {b}?",
    "Are {a} and {b} the same thing?",
    "I confuse {a} with {b}. How do they differ?",
)
DIFF_UNSEEN = ("In what way do {a} and {b} differ?", "Contrast {a} with {b}.")
TELL = (
    "Tell me {x}.",
    "Tell me {x} in detail.",
    "Please tell me {x}.",
    "Can you tell me {x}?",
    "Could you tell me {x}, step by step?",
    "Describe {x}.",
    "Describe {x} in detail.",
    "Describe {x} step by step.",
    "Explain {x} in detail.",
    "Walk me through {x}.",
    "Walk me through {x}, please.",
    "I would like to hear {x}.",
    "I want to read {x}.",
    "Give me {x}.",
    "Write about {x}.",
    "Narrate {x}.",
    "Give me a long answer about {x}.",
    "Tell me a story about {x}.",
)
TELL_UNSEEN = ("Take me through {x}.", "Please describe {x} at length.")


@dataclass(frozen=True)
class Topic:
    """One answer and all questions that lead to it, split by fixed hash."""

    kind: str
    answer: str
    trained: tuple[str, ...]
    own: tuple[str, ...]  # the hand-written part of trained
    held_back: tuple[str, ...]
    unseen: tuple[str, ...]


def normal(question: str) -> str:
    """Lower case, letters and digits only: what counts as the same question."""
    return re.sub(r"[^a-z0-9]+", " ", question.lower()).strip()


def bare(name: str) -> str:
    return re.sub(r"^(a|an|the) ", "", name)


def fill(templates: Iterable[str], kind: str, form: str) -> Iterator[str]:
    """The questions that one form gives. Pairs are written "first|second" in the corpus."""
    first, _, second = form.partition("|")
    for template in templates:
        if kind in ("why", "how"):
            yield template.format(q=first, s=second)
        elif kind == "diff":
            yield template.format(a=first, b=second)
        else:
            yield template.format(x=form, b=bare(form), v=form)


TRAINED = {"simple": SIMPLE, "why": WHY, "how": HOW, "do": DO, "diff": DIFF, "tell": TELL}
UNSEEN = {
    "what": WHAT_UNSEEN,
    "why": WHY_UNSEEN,
    "how": HOW_UNSEEN,
    "do": DO_UNSEEN,
    "diff": DIFF_UNSEEN,
    "tell": TELL_UNSEEN,
}
Entry = tuple[str, list[str], str, list[str]]


def taken_from_what(entries: list[Entry]) -> dict[str, set[str]]:
    """Tag -> normalised names whose simple, how or why question has an entry of its own."""
    taken: dict[str, set[str]] = {"simple": set(), "how": set(), "why": set()}
    names = [normal(bare(n)) for kind, forms, *_ in entries if kind == "what" for n in forms]
    for kind, forms, _, own in entries:
        if kind == "simple":
            taken["simple"] |= {normal(bare(form)) for form in forms}
        elif kind in ("how", "why"):
            text = " ".join(f" {normal(line)} " for line in [*forms, *own])
            taken[kind] |= {name for name in names if f" {name} " in text}
    return taken


def phrasings(entry: Entry, taken: dict[str, set[str]]) -> list[str]:
    kind, forms, _, _ = entry
    if kind == "ask":
        return []
    if kind != "what":
        return [q for form in forms for q in fill(TRAINED[kind], kind, form)]
    names = {normal(bare(form)) for form in forms}
    tags = [tag for tag in WHAT if not (tag in taken and names & taken[tag])]
    return [q for form in forms for tag in tags for q in fill(WHAT[tag], kind, form)]


def is_held_back(question: str) -> bool:
    """True for a fixed fifth of all phrasings; never for one or two words, which name no intention."""
    if len(normal(question).split()) < 3:
        return False
    digest = hashlib.blake2b(normal(question).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32 < HELD_BACK_SHARE


def build_topics(entries: list[Entry], always_trained: Iterable[str]) -> list[Topic]:
    """All topics. Raises ValueError when one question would lead to two answers."""
    taken = taken_from_what(entries)
    keep = {normal(q) for q in always_trained}
    owner: dict[str, str] = {}
    written = {normal(q): entry[2] for entry in entries for q in entry[3]}
    topics = []
    for entry in entries:
        kind, forms, answer, own = entry
        made = [q for q in phrasings(entry, taken) if written.get(normal(q), answer) == answer]
        unseen = [q for form in forms for q in fill(UNSEEN.get(kind, ()), kind, form)]
        for question in [*made, *own, *unseen]:
            if owner.setdefault(normal(question), answer) != answer:
                raise ValueError(f"two answers for {question!r}")
        kept = keep | {normal(q) for q in made[:1]}
        held = [q for q in [*made, *own] if is_held_back(q) and normal(q) not in kept]
        held_normal = {normal(q) for q in held}
        trained = [q for q in [*made, *own] if normal(q) not in held_normal]
        mine = [q for q in own if normal(q) not in held_normal]
        topics.append(Topic(kind, answer, tuple(trained), tuple(mine), tuple(held), tuple(unseen)))
    return topics
