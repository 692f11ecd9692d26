"""Samples training dialogues: turns, system prompts, long filler, typos.

A sequence is (token ids, loss mask); only answers and their end token carry loss. All randomness comes from the
`random.Random` that is passed in, so a step always sees the same batch.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from tools.demo_model.offtopic import FALLBACK, OffTopic
from tools.demo_model.skills.messages import Message
from tools.demo_model.templates import Topic
from tools.demo_model.tokenizer import BOS, END, MAX_POSITIONS, ROLES

Sequence = tuple[list[int], list[bool]]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a concise assistant. Answer in one or two sentences.",
    "You are Baton's demo model.",
    "You answer questions about LLM serving.",
    "Be brief and friendly.",
    "You are ChatGPT, a large language model. Answer the user's questions.",
)
PREFIXES = (
    "Hi! ",
    "Hello, ",
    "Hey, ",
    "Please: ",
    "Quick question: ",
    "One more question. ",
    "ok. ",
    "And now: ",
)
SUFFIXES = (" Thanks!", " Thank you.", " please", " Please answer briefly.", " I am curious.")


@dataclass(frozen=True)
class Mix:
    """The shares of the kinds of samples."""

    fallback: float = 0.17
    greeting: float = 0.06
    showcase: float = 0.015
    story: float = 0.035
    long: float = 0.11
    split_words: float = 0.3
    typo: float = 0.1
    calls: float = 0.42
    objects: float = 0.28


def typo(text: str, rng: random.Random) -> str:
    """One slip in one word of five or more letters; the text as it is when there is none."""
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if len(word) >= 5]
    if not places:
        return text
    at = max(rng.sample(places, min(2, len(places))), key=lambda i: len(words[i]))
    word = words[at]
    i = rng.randrange(1, len(word) - 2)
    slips: list[Callable[[], str]] = [
        lambda: word[:i] + word[i + 1 :],
        lambda: word[:i] + word[i] + word[i:],
        lambda: word[:i] + word[i + 1] + word[i] + word[i + 2 :],
        lambda: word[:i] + rng.choice("aeiourstn") + word[i + 1 :],
    ]
    words[at] = rng.choice(slips)()
    return " ".join(words)


def vary(question: str, rng: random.Random, mix: Mix) -> str:
    """Case, punctuation, politeness and typing variants of a question."""
    if rng.random() < 0.10 and len(question) > 8:
        question = rng.choice(PREFIXES) + question
    if rng.random() < 0.05 and len(question) > 8:
        question += rng.choice(SUFFIXES)
    roll = rng.random()
    if roll < 0.12:
        question = question.lower()
    elif roll < 0.14:
        question = question.upper()
    elif roll < 0.20:
        question = question[0].upper() + question[1:]
    if rng.random() < 0.2:
        question = question.rstrip("?.!") + rng.choice(("", "", "?", ".", "??", " ?", "!"))
    return typo(question, rng) if rng.random() < mix.typo else question


class DialogueSampler:
    """Makes sequences from topics, off-topic questions and filler sentences.

    It has 11 attributes: the sources of text, and the control tokens of the template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        topics: list[Topic],
        filler: list[str],
        mix: Mix,
        showcase: list[str],
    ) -> None:
        self.tokenizer = tokenizer
        self.showcase = [(q, t.answer) for t in topics for q in showcase if q in t.trained]
        self.filler = filler
        self.mix = mix
        self.off_topic = OffTopic()
        self.greetings = [t for t in topics if t.kind == "greet"]
        self.stories = [t for t in topics if t.kind == "tell"]
        self.plain = [t for t in topics if t.kind not in ("greet", "tell")]
        self.bos = tokenizer.token_to_id(BOS)
        self.end = tokenizer.token_to_id(END)
        self.roles = {role: tokenizer.token_to_id(token) for role, token in ROLES.items()}

    def turn(self, rng: random.Random, stories: bool = True) -> tuple[str, str]:
        roll = rng.random()
        if roll < self.mix.fallback:
            return vary(self.off_topic.question(rng), rng, self.mix), FALLBACK
        roll -= self.mix.fallback
        if roll > 1 - self.mix.fallback - self.mix.showcase:
            question, answer = rng.choice(self.showcase)
            return vary(question, rng, self.mix), answer
        if roll < self.mix.greeting and self.greetings:
            topic = rng.choice(self.greetings)
        elif stories and self.stories and roll < self.mix.greeting + self.mix.story:
            topic = rng.choice(self.stories)
        else:
            topic = rng.choice(self.plain)
        own = topic.own and rng.random() < 0.35
        question = rng.choice(topic.own if own else topic.trained)
        return vary(question, rng, self.mix), topic.answer

    def encode_question(self, text: str, rng: random.Random) -> list[int]:
        """Token ids; now and then with words cut at random places, so that the model knows odd splits."""
        if rng.random() >= self.mix.split_words:
            return list(self.tokenizer.encode(text).ids)
        cuts = [0, *(i for i in range(1, len(text)) if rng.random() < 0.08), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        return [i for piece in pieces for i in self.tokenizer.encode(piece).ids]

    def filler_ids(self, num_tokens: int, rng: random.Random) -> list[int]:
        """About `num_tokens` of text that has nothing to do with the question."""
        if rng.random() < 0.15:
            first = len(self.roles) + 3
            top = self.tokenizer.get_vocab_size()
            return [rng.randrange(first, top) for _ in range(num_tokens)]
        ids: list[int] = []
        pool = rng.sample(self.filler, min(len(self.filler), rng.choice((3, 10, 40, 400))))
        while len(ids) < num_tokens:
            sentence = rng.choice(pool)
            if rng.random() < 0.2:
                words = sentence.split(" ")
                rng.shuffle(words)
                sentence = " ".join(words)
            ids += self.tokenizer.encode(sentence + rng.choice((" ", " ", "\n", "\n\n"))).ids
        return ids[:num_tokens]

    def sequence(self, rng: random.Random) -> Sequence:
        if rng.random() < self.mix.long:
            return self.long_sequence(rng)
        ids, mask = self.opening(self.short_system(rng))
        for _ in range(1 if rng.random() < 0.5 else rng.randint(2, 4)):
            self.add_turn(ids, mask, rng)
        return ids, mask

    def long_sequence(self, rng: random.Random) -> Sequence:
        """Up to the whole window: a long system prompt, pasted text, or many turns."""
        budget = int(MAX_POSITIONS * (0.08 + 0.92 * rng.random() ** 1.3))
        form = rng.choice(("system", "system", "pasted", "turns", "turns"))
        room = budget - 110
        system = self.filler_ids(room, rng) if form == "system" else self.short_system(rng)
        ids, mask = self.opening(system)
        if form == "turns":
            while len(ids) < room:
                self.add_turn(ids, mask, rng)
            return ids[:MAX_POSITIONS], mask[:MAX_POSITIONS]
        pasted = self.filler_ids(room - len(ids), rng) if form == "pasted" else []
        self.add_turn(ids, mask, rng, pasted)
        while len(ids) < budget - 110:
            self.add_turn(ids, mask, rng)
        return ids[:MAX_POSITIONS], mask[:MAX_POSITIONS]

    def short_system(self, rng: random.Random) -> list[int]:
        roll = rng.random()
        if roll < 0.5:
            return []
        if roll < 0.8:
            return list(self.tokenizer.encode(rng.choice(SYSTEM_PROMPTS)).ids)
        return self.filler_ids(rng.randint(5, 60), rng)

    def opening(self, system: list[int]) -> Sequence:
        ids = [self.bos]
        if system:
            ids += [self.roles["system"], *system, self.end]
        return ids, [False] * len(ids)

    def add_turn(
        self, ids: list[int], mask: list[bool], rng: random.Random, pasted: list[int] | None = None
    ) -> None:
        question, answer = self.turn(rng, stories=not pasted)
        asked = self.encode_question(question, rng)
        if pasted:
            asked = [*pasted, *self.tokenizer.encode("\n\n").ids, *asked]
        prompt = [self.roles["user"], *asked, self.end, self.roles["assistant"]]
        reply = [*self.tokenizer.encode(answer).ids, self.end]
        ids += prompt + reply
        mask += [False] * len(prompt) + [True] * len(reply)

    def encode_answer(self, message: Message, rng: random.Random) -> Sequence:
        """Tokens with their loss: none in forced stretches, which a grammar may spell in odd tokens."""
        text, cuts = message.text, [0, len(message.text)]
        if message.forced and rng.random() < self.mix.split_words:
            cuts += [i for i in range(1, len(text)) if message.is_forced(i) and rng.random() < 0.12]
        ids: list[int] = []
        mask: list[bool] = []
        for start, end in itertools.pairwise(sorted(set(cuts))):
            encoding = self.tokenizer.encode(text[start:end])
            ids += encoding.ids
            mask += [not message.is_forced(start + first) for first, _ in encoding.offsets]
        return [*ids, self.end], [*mask, True]

    def encode_messages(
        self, messages: list[Message], before: list[int], rng: random.Random
    ) -> Sequence:
        """A whole dialogue. `before`: tokens that its system message begins with."""
        if before and messages[0].role != "system":
            messages = [Message("system", ""), *messages]
        ids = [self.bos]
        mask = [False]
        for index, message in enumerate(messages):
            if message.role == "assistant":
                text, loss = self.encode_answer(message, rng)
            else:
                own = self.tokenizer.encode(message.text).ids
                text = [*(() if index else before), *own, self.end]
                loss = [False] * len(text)
            ids += [self.roles[message.role], *text]
            mask += [False, *loss]
        return ids[:MAX_POSITIONS], mask[:MAX_POSITIONS]
