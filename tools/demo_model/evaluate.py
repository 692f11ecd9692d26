"""Greedy answers to prompts that were not in the training, compared word for word."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.demo_model.dialogue import DialogueSampler
from tools.demo_model.offtopic import FALLBACK, TEST_FREE, TEST_NOUNS, OffTopic
from tools.demo_model.skills.calls import CallDialogues, system_text
from tools.demo_model.skills.messages import Message
from tools.demo_model.skills.objects import JsonDialogues
from tools.demo_model.skills.values import Pieces, Values
from tools.demo_model.templates import Topic
from tools.demo_model.tokenizer import BOS, END, PAD, ROLES

NUM_TOGETHER = 160


@dataclass(frozen=True)
class Probe:
    """Messages, and the one right answer to them."""

    messages: tuple[Message, ...]
    answer: str

    @property
    def question(self) -> str:
        return self.messages[-1].text


@dataclass
class Score:
    """How many of a set were exact, and how many ended by themselves."""

    num: int
    num_exact: int
    num_ended: int
    misses: list[str]

    @property
    def exact(self) -> float:
        return round(100 * self.num_exact / max(self.num, 1), 1)

    @property
    def ended(self) -> float:
        return round(100 * self.num_ended / max(self.num, 1), 1)


def asking(question: str, answer: str, system: str = "") -> Probe:
    opening = (Message("system", system.strip()),) if system else ()
    return Probe((*opening, Message("user", question.strip())), answer)


def prompt_ids(tokenizer: Tokenizer, probe: Probe) -> list[int]:
    """The token ids of a conversation, as the chat template gives them."""
    text = BOS + "".join(ROLES[each.role] + each.text + END for each in probe.messages)
    return list(tokenizer.encode(text + ROLES["assistant"]).ids)


@torch.inference_mode()
def answers(
    model: LlamaForCausalLM, tokenizer: Tokenizer, probes: list[Probe], max_new_tokens: int
) -> list[tuple[str, bool]]:
    """Greedy (text, ended by itself) for each probe, in batches of prompts alike in length."""
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    prompts = [prompt_ids(tokenizer, probe) for probe in probes]
    order = sorted(range(len(probes)), key=lambda i: len(prompts[i]))
    found: dict[int, tuple[str, bool]] = {}
    for start in range(0, len(order), NUM_TOGETHER):
        group = order[start : start + NUM_TOGETHER]
        width = max(len(prompts[i]) for i in group)
        ids = torch.full((len(group), width), pad)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(group):
            ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
            mask[row, width - len(prompts[i]) :] = 1
        out = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=pad,
        )
        for row, i in enumerate(group):
            new = out[row, width:].tolist()
            ended = end in new
            new = new[: new.index(end)] if ended else new
            found[i] = (tokenizer.decode(new), ended)
    return [found[i] for i in range(len(probes))]


def score(model: LlamaForCausalLM, tokenizer: Tokenizer, probes: list[Probe]) -> Score:
    longest = max(len(tokenizer.encode(probe.answer).ids) for probe in probes)
    got = answers(model, tokenizer, probes, longest + 30)
    misses = [
        f"{probe.question[-80:]!r} -> {text[:160]!r}, not {probe.answer[:160]!r}"
        for probe, (text, ended) in zip(probes, got, strict=True)
        if text != probe.answer or not ended
    ]
    return Score(len(probes), len(probes) - len(misses), sum(e for _, e in got), misses)


def pick(topics: list[Topic], part: Callable[[Topic], tuple[str, ...]], num: int) -> list[Probe]:
    """`num` probes in fixed random order, spread over the topics; long answers excluded."""
    rng = random.Random(11)
    made = []
    for topic in topics:
        questions = list(part(topic))
        rng.shuffle(questions)
        if topic.kind != "tell":
            made += [(i, rng.random(), asking(q, topic.answer)) for i, q in enumerate(questions)]
    return [probe for _, _, probe in sorted(made, key=lambda row: row[:2])[:num]]


def off_topic_probes(num: int) -> list[Probe]:
    rng = random.Random(12)
    maker = OffTopic(TEST_NOUNS, TEST_FREE)
    return [asking(maker.question(rng), FALLBACK) for _ in range(num)]


def long_probes(probes: list[Probe], sampler: DialogueSampler, num_tokens: int) -> list[Probe]:
    """The same questions behind a system prompt of about `num_tokens`."""
    rng = random.Random(13)
    made = []
    for probe in probes:
        words: list[str] = []
        size = 0
        while size < num_tokens:
            words.append(rng.choice(sampler.filler))
            size += len(sampler.tokenizer.encode(words[-1] + " ").ids)
        made.append(asking(probe.question, probe.answer, " ".join(words)))
    return made


def call_probes(held: list[Probe], num: int, pieces: Pieces) -> dict[str, list[Probe]]:
    """Questions with functions: names of functions and values that were not trained."""
    rng = random.Random(14)
    dialogues = CallDialogues(Values(True, pieces), lambda _: ("", ""))
    calls, results, plain = [], [], []
    for index in range(num):
        declared = dialogues.declare_some(rng)
        system = Message("system", system_text(declared, rng))
        question, call, result, told = dialogues.call_turn(declared, rng)
        calls.append(Probe((system, question), call.text))
        results.append(Probe((system, question, call, result), told.text))
        topic = held[index % len(held)]
        other = Message("user", dialogues.unmatched(declared, rng))
        plain += [
            Probe((system, *topic.messages), topic.answer),
            Probe((system, other), FALLBACK),
        ]
    return {
        "calls of functions": calls,
        "sentences about results": results[: num // 2],
        "no function fits": plain[: num // 2],
    }


def json_probes(num: int, pieces: Pieces) -> list[Probe]:
    """Facts to extract, of values that were not trained."""
    rng = random.Random(15)
    dialogues = JsonDialogues(Values(True, pieces), lambda _: ("", ""))
    made = [dialogues.extraction(rng) for _ in range(num)]
    return [Probe(tuple(each[:-1]), each[-1].text) for each in made]
