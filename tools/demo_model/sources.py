"""The sampler with all its texts, and the tokenizer that is made from them."""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from tools.demo_model.corpus import SHOWCASE
from tools.demo_model.dialogue import DialogueSampler, Mix
from tools.demo_model.filler import build_filler
from tools.demo_model.offtopic import FALLBACK, FREE, NOUNS
from tools.demo_model.skills.calls import CallDialogues
from tools.demo_model.skills.objects import JsonDialogues
from tools.demo_model.skills.values import Pieces, Values
from tools.demo_model.templates import Topic
from tools.demo_model.tokenizer import TOOL_MARKS, train_tokenizer

NUM_DIALOGUES = 1500
SPACE = "Ġ"  # in byte-level tokens


def build_sampler(topics: list[Topic], saved: Path | None = None) -> DialogueSampler:
    """A sampler with the tokenizer of a saved model, or with one trained on the corpus."""
    sentences = [s + "." for t in topics for s in t.answer.split(". ") if len(s) > 40]
    filler = build_filler(sentences)
    if saved is not None:
        tokenizer = Tokenizer.from_file(str(saved / "tokenizer.json"))
    else:
        asked = [q for t in topics for q in t.trained]
        answers_thrice = [t.answer for t in topics for _ in range(3)]
        known = [*answers_thrice, *asked, *filler, *FREE, *NOUNS, FALLBACK]
        tokenizer = train_tokenizer([*known, *dialogue_texts()])
    return DialogueSampler(tokenizer, topics, filler, Mix(), SHOWCASE)


def word_pieces(tokenizer: Tokenizer) -> Pieces:
    """The tokens that are letters, to make up words of."""
    tokens = sorted(token for token in tokenizer.get_vocab() if token.lstrip(SPACE).isascii())
    begins = [token[1:] for token in tokens if token[0] == SPACE and token[1:].isalpha()]
    return begins, [token for token in tokens if token.isalpha() and token[0] != SPACE]


def dialogue_texts() -> Iterator[str]:
    """Texts of dialogues with functions and JSON, for the tokenizer."""
    rng = random.Random(3)
    calls = CallDialogues(Values(), lambda _: ("", ""))
    objects = JsonDialogues(Values(), lambda _: ("", ""))
    for number in range(NUM_DIALOGUES):
        maker = objects if number % 2 else calls
        for message in maker.dialogue(rng):
            text = message.text
            for mark in TOOL_MARKS:
                text = text.replace(mark, " ")
            yield text
