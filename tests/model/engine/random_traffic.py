"""Random requests at random times on one engine, whose pool is too small for all of them.

In it is whatever shares, moves, or takes back KV: prefixes, forks, beams, chunks, guesses, handed
over prompts, aborts, credit that stutters, preemption. The pool is full of NaN at the beginning.
"""

import random
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import msgspec
import numpy as np
import torch

from baton.engine.protocol.messages import (
    Abort,
    AddSequence,
    Bind,
    Command,
    Credit,
    Fork,
    Release,
    SamplingParams,
    Start,
    StepEvents,
)
from baton.engine.protocol.runner import Runner
from baton.engine.step.engine import Engine, EngineConfig
from baton.model.load.load import LoadedModel
from baton.system.clock import SystemClock
from baton.testing.tiny_models import VOCAB_SIZE
from baton.wire.prefix_hash import block_hashes, root_hash

MAX_PROMPT, MAX_OUTPUT = 60, 30
MAX_OPEN = 24
PLENTY = 1 << 30
CACHE_KEYS = (b"a" * 32, b"b" * 32)
# Differences of logprobs in float32, and of logits at which the likeliest tokens are tied.
TOLERANCE = 1e-3


@dataclass
class Answer:
    """What one sequence has got: its output tokens with their logprobs."""

    prompt: list[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Handoff:
    """A prompt on its way between two sequences of the engine."""

    source: int
    target: int
    sources: list[int] = field(default_factory=list)
    targets: list[int] | None = None
    num_cached: int = 0


class RandomTraffic:
    """Runs until there are `num_tokens` output tokens; then `answers` are whole or were ended."""

    def __init__(self, loaded: LoadedModel, runner: Runner, seed: int, max_seqs: int = 16) -> None:
        self.answers: dict[int, Answer] = {}
        self.num_preemptions = 0
        self._rng = random.Random(seed)
        self._loaded, self._spec = loaded, loaded.kv_spec
        longest = self._spec.num_blocks_for(MAX_PROMPT + MAX_OUTPUT + 1)
        num_blocks = longest * self._rng.randint(3, 8)
        self._engine = Engine(
            EngineConfig(
                *(loaded.fingerprint, "tiny", "local", num_blocks, max_seqs),
                max_step_tokens=self._rng.randint(max_seqs, 96),
                num_draft_tokens=self._rng.choice([0, 3]),
                num_rows=2 * longest,  # of a ring, if the runner has one
            ),
            runner,
            SystemClock(),
        )
        num_bytes = self._engine.num_pool_rows * self._spec.row_bytes
        self._pool = memoryview(bytearray(b"\xff") * num_bytes)
        self._engine.bind_pool(self._pool)
        self._commands: list[Command] = []
        self._open: set[int] = set()
        # Those that were not cut short.
        self.searches: list[AddSequence] = []
        self._handoff: Handoff | None = None
        self._num_added = 0
        self._stem = self._random_tokens(MAX_PROMPT)

    def run(self, num_tokens: int) -> None:
        while sum(len(answer.tokens) for answer in self.answers.values()) < num_tokens:
            if len(self._open) < MAX_OPEN and self._rng.random() < 0.8:
                self._add()
            if self._open and self._rng.random() < 0.1:
                self._commands.append(Credit(self._rng.choice(sorted(self._open)), PLENTY))
            if self._open and self._rng.random() < 0.02:
                self._abort(self._rng.choice(sorted(self._open)))
            self._step()
        self.finish()

    def send(self, add: AddSequence) -> None:
        """Add one more request."""
        self._open |= set(choices_of(add))
        self._commands.append(add)

    def finish(self) -> None:
        """Run until nothing is open, and see that nothing is held."""
        self._commands += [Credit(seq_id, PLENTY) for seq_id in self._open]
        for _ in range(2000):
            if not self._open:
                break
            goes_on = self._step()
            if not goes_on and self._waits_for_itself(handoff := self._handoff):
                self._end(handoff.source)
        assert not self._open, "sequences starve"
        self._step()
        self._engine.check_integrity()
        assert self._engine.measure_load().num_blocks_free == self._engine.info.num_blocks

    def _waits_for_itself(self, handoff: Handoff | None) -> TypeGuard[Handoff]:
        """Both halves are on this engine: a search at the head of its line may wait for the blocks
        of the target, and the source behind the search. Fronts end what waits."""
        is_search_open = any(search.seq_id in self._open for search in self.searches)
        is_bound = handoff is not None and handoff.targets is not None and not handoff.sources
        return is_bound and is_search_open

    def _step(self) -> bool:
        """Whether something happened, or will by commands that came of it."""
        commands, self._commands = self._commands, []
        happened = events = self._engine.step(commands)
        while events is not None:
            self._take(events)
            events = self._engine.next_events()
        return happened is not None or bool(self._commands)

    def _take(self, events: StepEvents) -> None:
        self.num_preemptions += events.num_preemptions
        for seq_id, token in zip(events.token_seq_ids, events.token_ids, strict=True):
            self.answers[seq_id].tokens.append(token)
        for told in events.logprobs:
            self.answers[told.seq_id].logprobs.append(told.logprob)
        for refused in events.refused:
            self._end(refused.seq_id)
        for finished in events.finished:
            self._end(finished.seq_id)
        if self._handoff is not None:
            self._go_on(self._handoff, events)

    def _end(self, seq_id: int) -> None:
        self._open.discard(seq_id)
        handoff = self._handoff
        if handoff is not None and seq_id in (handoff.source, handoff.target):
            self._commands += [Abort(handoff.source), Abort(handoff.target)]
            self._open -= {handoff.source, handoff.target}
            self._handoff = None

    def _go_on(self, handoff: Handoff, events: StepEvents) -> None:
        """Copy the blocks when they are computed here and bound there."""
        for admitted in events.admitted:
            handoff.num_cached = admitted.num_cached_blocks
            self._commands.append(Bind(handoff.target))
        for started in events.started:
            if started.seq_id == handoff.source:
                handoff.sources = started.rows
        for bound in events.bound:
            handoff.targets = bound.rows
        first = self.answers[handoff.source].tokens
        if first and handoff.targets is not None:
            sources = handoff.sources[handoff.num_cached :]
            for source, target in zip(sources, handoff.targets, strict=True):
                self._row(target)[:] = self._row(source)
            self._commands += [Release(handoff.source), Start(handoff.target, first[0])]
            self.answers[handoff.target].tokens += first
            self.answers[handoff.target].logprobs += self.answers[handoff.source].logprobs
            self._open.discard(handoff.source)
            self._handoff = None

    def outputs(self, search: AddSequence) -> list[list[int]]:
        """The results of a search, best first."""
        return [self.answers[seq_id].tokens for seq_id in choices_of(search)]

    def _abort(self, seq_id: int) -> None:
        self.searches = [each for each in self.searches if seq_id not in choices_of(each)]
        if self._handoff is None or seq_id not in (self._handoff.source, self._handoff.target):
            self._commands.append(Abort(seq_id))
        self._end(seq_id)

    def _add(self) -> None:
        kind = self._rng.choices(["one", "forks", "search", "handoff"], [6, 2, 1, 2])[0]
        if kind == "handoff" and self._handoff is None:
            sampling = self._random_sampling()
            prompt = self._random_prompt()
            source = self._request("prefill", prompt, sampling, credit=1)
            target = self._request("remote", prompt, sampling)
            self._handoff = Handoff(source.seq_id, target.seq_id)
            self._commands += [source, target]
        elif kind == "search":
            width = self._rng.randint(2, 3)
            sampling = SamplingParams(self._rng.randint(2, 12), ignore_eos=True, beam_width=width)
            add = self._with_forks(self._request("local", self._random_prompt(), sampling), width)
            self.searches.append(add)
            self._commands.append(add)
        elif kind == "forks":
            prompt, sampling = self._random_prompt(), self._random_sampling()
            add = self._request("local", prompt, sampling)
            self._commands.append(self._with_forks(add, self._rng.randint(2, 4)))
        else:
            num_emitted = self._rng.choice([0, 0, 0, 5])
            add = self._request(
                "local", self._random_prompt(), self._random_sampling(), num_emitted
            )
            self._commands.append(add)

    def _request(
        self,
        kind: Any,
        prompt: list[int],
        sampling: SamplingParams,
        num_emitted: int = 0,
        credit: int = PLENTY,
    ) -> AddSequence:
        num_emitted = min(num_emitted, len(prompt) - 1, sampling.max_tokens - 1)
        if credit == PLENTY and kind == "local" and self._rng.random() < 0.2:
            credit = num_emitted + self._rng.randint(0, 4)
        seq_id = self._open_one(prompt, sampling)
        ids = np.array(prompt, "<u4").tobytes()
        key = CACHE_KEYS[self._rng.random() < 0.2]
        root = root_hash(self._loaded.fingerprint, self._spec.block_size, key)
        hashes = block_hashes(
            root, ids[: 4 * (len(prompt) - num_emitted)], self._spec.block_size, key
        )
        return AddSequence(
            *(seq_id, f"r{seq_id}", 0, kind, ids, num_emitted, hashes, key, sampling, credit),
            priority=self._rng.choice([0, 0, 0, 1]),
        )

    def _with_forks(self, add: AddSequence, num_choices: int) -> AddSequence:
        prompt = self.answers[add.seq_id].prompt
        forks = [
            Fork(self._open_one(prompt, add.sampling), choice) for choice in range(1, num_choices)
        ]
        return msgspec.structs.replace(add, forks=tuple(forks))

    def _open_one(self, prompt: list[int], sampling: SamplingParams) -> int:
        self._num_added += 1
        self._open.add(self._num_added)
        self.answers[self._num_added] = Answer(prompt, sampling)
        return self._num_added

    def _random_prompt(self) -> list[int]:
        """Some begin alike, and some have whole blocks of tokens only."""
        shared = self._stem[: self._rng.randint(0, MAX_PROMPT - 1)]
        prompt = (shared if self._rng.random() < 0.5 else []) + self._random_tokens(
            self._rng.randint(1, MAX_PROMPT)
        )
        prompt, size = prompt[:MAX_PROMPT], self._spec.block_size
        if self._rng.random() < 0.3 and len(prompt) >= size:
            del prompt[len(prompt) // size * size :]
        return prompt

    def _random_tokens(self, num_tokens: int) -> list[int]:
        return [self._rng.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]

    def _random_sampling(self) -> SamplingParams:
        rng = self._rng
        options: dict[str, Any] = rng.choice(
            [
                {},
                {},
                {"temperature": 1.0},
                {"temperature": 0.7, "top_p": 0.9},
                {"temperature": 1.3, "top_k": 20, "min_p": 0.01},
                {"presence_penalty": 1.0, "frequency_penalty": 0.5},
                {"repetition_penalty": 1.3, "temperature": 0.5},
                {"logit_bias": ((7, 3.0), (9, -100.0))},
                {"min_tokens": 4, "stop_token_ids": tuple(range(0, VOCAB_SIZE, 16))},
            ]
        )
        return SamplingParams(
            rng.randint(1, MAX_OUTPUT),
            seed=rng.randrange(1 << 30),
            ignore_eos=rng.random() < 0.8,
            num_logprobs=0,
            **options,
        )

    def _row(self, block_id: int) -> memoryview:
        size = self._spec.row_bytes
        return self._pool[block_id * size : (block_id + 1) * size]

    # The oracle.

    def check(self, reference: Any) -> int:
        """Compare with transformers; returns the number of compared tokens."""
        sampled = [
            answer
            for answer in self.answers.values()
            if answer.tokens and not answer.sampling.beam_width
        ]
        sampled.sort(key=lambda answer: len(answer.prompt) + len(answer.tokens))
        for start in range(0, len(sampled), 32):
            _check_logprobs(sampled[start : start + 32], reference)
        return sum(len(answer.tokens) for answer in sampled)


def choices_of(search: AddSequence) -> list[int]:
    """The sequences that get its results."""
    return [search.seq_id, *(fork.seq_id for fork in search.forks)]


def roomy_search(loaded: LoadedModel, runner: Runner, search: AddSequence) -> list[list[int]]:
    """The results of a search that has an engine to itself."""
    traffic = RandomTraffic(loaded, runner, seed=0)
    for seq_id in choices_of(search):
        traffic.answers[seq_id] = Answer([], search.sampling)
    traffic.send(msgspec.structs.replace(search, credit=PLENTY))
    traffic.finish()
    return traffic.outputs(search)


@torch.inference_mode()
def _check_logprobs(answers: list[Answer], reference: Any) -> None:
    """All in one batch: what pads a sequence comes after all that is looked at."""
    rows = [answer.prompt + answer.tokens for answer in answers]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    logits = reference.model(input_ids=ids, use_cache=False).logits.float()
    logprobs = logits.log_softmax(-1)
    for answer, of_row in zip(answers, logprobs, strict=True):
        first = len(answer.prompt) - 1
        of_outputs = of_row[first : first + len(answer.tokens)]
        tokens = torch.tensor(answer.tokens)[:, None]
        expected = of_outputs.gather(1, tokens)[:, 0]
        torch.testing.assert_close(
            torch.tensor(answer.logprobs), expected, atol=TOLERANCE, rtol=0.0
        )
        if is_plain_greedy(answer.sampling):
            assert (of_outputs.amax(1) - expected <= TOLERANCE).all()


def is_plain_greedy(sampling: SamplingParams) -> bool:
    edits = (sampling.presence_penalty, sampling.logit_bias, sampling.stop_token_ids)
    return sampling.temperature == 0 and not any(edits)
