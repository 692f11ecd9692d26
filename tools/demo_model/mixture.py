"""The training data without end: what is known by heart, calls of functions, and JSON, in batches.

Every pool of sequences depends on the seed and its number alone, so that runs repeat however many processes make it.
"""

import multiprocessing
import multiprocessing.pool
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
from numpy.typing import NDArray

from tools.demo_model.dialogue import DialogueSampler, Sequence
from tools.demo_model.skills.calls import CallDialogues
from tools.demo_model.skills.objects import JsonDialogues
from tools.demo_model.skills.values import Values
from tools.demo_model.sources import word_pieces

WIDTH_STEP = 32
# Token ids and loss mask, `[num_sequences, num_tokens]`, padded on the right.
Batch = tuple[NDArray[np.int16], NDArray[np.bool_]]


class Mixture:
    """Draws sequences of every kind. `max_tokens`: of a padded batch."""

    def __init__(self, sampler: DialogueSampler, seed: int, max_tokens: int) -> None:
        self.sampler = sampler
        self.seed = seed
        self.max_tokens = max_tokens
        values = Values(pieces=word_pieces(sampler.tokenizer))
        self.calls = CallDialogues(values, self.plain)
        self.objects = JsonDialogues(values, self.plain)

    def plain(self, rng: random.Random) -> tuple[str, str]:
        return self.sampler.turn(rng, stories=False)

    def sequence(self, rng: random.Random) -> Sequence:
        roll, mix = rng.random(), self.sampler.mix
        if roll >= mix.calls + mix.objects:
            return self.sampler.sequence(rng)
        dialogue = self.calls.dialogue(rng) if roll < mix.calls else self.objects.dialogue(rng)
        size = int(1200 * rng.random() ** 3) if rng.random() < mix.long else 0
        before = self.sampler.filler_ids(size, rng) if size else []
        return self.sampler.encode_messages(dialogue, before, rng)

    def pool(self, number: int) -> list[Batch]:
        """The batches of one pool of sequences; those of a batch are alike in length."""
        rng = random.Random(self.seed * 1_000_003 + number)
        num_sequences = max(256, self.max_tokens // 32)
        ranked = sorted((self.sequence(rng) for _ in range(num_sequences)), key=lambda s: len(s[0]))
        made: list[list[Sequence]] = [[]]
        for sequence in ranked:
            width = -(-len(sequence[0]) // WIDTH_STEP) * WIDTH_STEP
            if made[-1] and width * (len(made[-1]) + 1) > self.max_tokens:
                made.append([])
            made[-1].append(sequence)
        rng.shuffle(made)
        return [padded(rows, pad=0) for rows in made]

    @contextmanager
    def batches(self, num_processes: int) -> Iterator[Iterator[Batch]]:
        """Batches without end, made ahead by processes of their own (0: here, when they are asked for)."""
        if not num_processes:
            yield (batch for number in count() for batch in self.pool(number))
            return
        # Forked: the processes have the corpus already.
        global _forked
        _forked = self
        with multiprocessing.get_context("fork").Pool(num_processes) as processes:
            yield (batch for pool in bounded(processes, 4 * num_processes) for batch in pool)


_forked: Mixture | None = None


def forked_pool(number: int) -> list[Batch]:
    """A pool of the mixture that a process was forked with."""
    assert _forked is not None
    return _forked.pool(number)


def bounded(processes: multiprocessing.pool.Pool, ahead: int) -> Iterator[list[Batch]]:
    """Pools in order, with at most `ahead` of them under way."""
    waiting = deque(processes.apply_async(forked_pool, (number,)) for number in range(ahead))
    for number in count(ahead):
        yield waiting.popleft().get()
        waiting.append(processes.apply_async(forked_pool, (number,)))


def padded(rows: list[Sequence], pad: int) -> Batch:
    # Few different widths: libraries on a GPU prepare for each.
    width = -(-max(len(ids) for ids, _ in rows) // WIDTH_STEP) * WIDTH_STEP
    tokens = np.full((len(rows), width), pad, np.int16)
    mask = np.zeros((len(rows), width), np.bool_)
    for row, (ids, loss) in enumerate(rows):
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = loss
    return tokens, mask
