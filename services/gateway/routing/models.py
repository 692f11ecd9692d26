"""Public model names -> served models, from the router's view of the fleet and the aliases.

A served model is known by its fingerprint; several fingerprints may share a name during a rolling
upgrade. An alias names one or more served models with weights. The last view stays in use while
no router answers. Knows nothing of requests.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain, islice
from typing import TypeVar

from baton.system.clock import Clock
from baton.wire.failures import ModelNotFound, Unavailable, did_you_mean, quoted
from baton.wire.v1 import router_pb2
from services.gateway.routing.ready_workers import ready_to_decode

MAX_MODELS = 1000
# A name that no router has named for so long was taken away. Routers remember a pool without
# workers for the same time; one that has just started remembers none.
FORGET_NAME_S = 3600.0
# A model without a ready worker is left to the router, which waits for one, for so long: most
# workers that died come back. After that each request is refused at once.
COMES_BACK_S = 30.0

T = TypeVar("T")


class AliasError(ValueError):
    """An alias entry is malformed; the message quotes it."""


@dataclass(frozen=True, slots=True)
class AliasTarget:
    """A served model's name and its share of the alias's requests."""

    model: str
    weight: float = 1.0


Aliases = Mapping[str, Sequence[AliasTarget]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One (name, revision) as its workers announce it."""

    model_fp: str
    name: str
    revision: str
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    num_ready: int = field(compare=False)
    # Its ready workers are prefill workers that stand in for decode workers.
    is_stood_in: bool = field(default=False, compare=False)
    engines: tuple[str, ...] = ()
    # Parameters that none of its workers serves.
    unsupported: frozenset[str] = frozenset()
    # Of a LoRA adapter: its fingerprint, and the name of the model that it is computed with.
    adapter: str = ""
    base: str = ""

    @property
    def system_fingerprint(self) -> str:
        """What computed an answer, as OpenAI names it: other weights, another one."""
        weights = self.model_fp
        if self.adapter:
            weights = sha256(f"{self.model_fp} {self.adapter}".encode()).hexdigest()
        return f"fp_{weights[:12]}"

    @classmethod
    def all_of(cls, state: router_pb2.ModelState) -> "list[ServedModel]":
        """The model, and each of its adapters: to clients that is a model, too."""
        ready = ready_to_decode(state)
        model = cls(
            model_fp=state.model_fp,
            name=state.name,
            revision=state.revision,
            block_size=state.block_size,
            max_model_len=state.max_model_len,
            vocab_size=state.vocab_size,
            eos_token_ids=frozenset(state.eos_token_ids),
            num_ready=len(ready),
            is_stood_in=any(w.role == router_pb2.WORKER_ROLE_PREFILL for w in ready),
            engines=tuple(state.engines),
            unsupported=frozenset(state.unsupported),
        )
        known = Counter((a.name, a.fingerprint) for worker in ready for a in worker.adapters)
        for worker in state.workers:
            if worker.role == router_pb2.WORKER_ROLE_DECODE:
                known.update({(a.name, a.fingerprint): 0 for a in worker.adapters})
        return [
            model,
            *(
                replace(model, name=name, base=model.name, adapter=adapter, num_ready=number)
                for (name, adapter), number in known.items()
            ),
        ]


def parse_aliases(entries: Iterable[str]) -> dict[str, list[AliasTarget]]:
    """`alias=model` or `alias=model:weight`; an alias may come several times. Raises AliasError."""
    aliases: dict[str, list[AliasTarget]] = {}
    for entry in entries:
        alias, equals, target = (part.strip() for part in entry.partition("="))
        if not (alias and equals and target):
            raise AliasError(f"{entry!r} is not alias=model or alias=model:weight")
        model, colon, weight = target.rpartition(":")
        if not colon or not weight.replace(".", "", 1).isdigit():
            model, weight = target, "1"
        if float(weight) <= 0:
            raise AliasError(f"{entry!r}: the weight must be above 0")
        aliases.setdefault(alias, []).append(AliasTarget(model, float(weight)))
    return aliases


class ModelDirectory:
    """Resolves public names. `update` replaces the view of the fleet."""

    def __init__(self, aliases: Aliases, rng: random.Random, clock: Clock) -> None:
        self._aliases = aliases
        self._rng = rng
        self._clock = clock
        self._by_name: dict[str, list[ServedModel]] = {}
        # The time at which a router named each of them last.
        self._known_names: dict[str, float] = {}
        # The time at which each of them had a ready worker last.
        self._ready_at: dict[str, float] = {}
        # Tells whether tokenizers have a model, by its fingerprint.
        self.has_tokenizer: Callable[[str], bool] = _is_true

    def update(self, states: Iterable[router_pb2.ModelState]) -> None:
        """Take in the router's view, at most MAX_MODELS models of it. An adapter that has the name
        of a model is left out."""
        by_name: dict[str, list[ServedModel]] = {}
        states = list(states)[:MAX_MODELS]
        names = {state.name for state in states}
        for model in chain.from_iterable(map(ServedModel.all_of, states)):
            if not model.adapter or model.name not in names:
                by_name.setdefault(model.name, []).append(model)
        self._by_name = by_name
        now = self._clock.now()
        older = (
            (name, named_at)
            for name, named_at in self._known_names.items()
            if name not in by_name and now - named_at <= FORGET_NAME_S
        )
        self._known_names = dict.fromkeys(by_name, now) | dict(islice(older, MAX_MODELS))
        last = ((name, at) for name, at in self._ready_at.items() if now - at <= COMES_BACK_S)
        self._ready_at = dict(last) | {name: now for name in by_name if self._ready(name)}

    def set_aliases(self, aliases: Aliases) -> None:
        """Replace the aliases; running requests keep what they resolved."""
        self._aliases = aliases

    def resolve(self, public_name: str, allowed: Iterable[str]) -> ServedModel:
        """The served model for a new request.

        Raises ModelNotFound for a name that does not exist or is not allowed (the same answer, so
        that a client cannot probe for names), Unavailable `no_worker` when no worker serves it now,
        or no worker has announced any model yet.
        """
        targets = self._targets(public_name)
        if not targets and not self._known_names and _is_allowed(public_name, allowed):
            raise Unavailable("no model has a worker yet", reason="no_worker", retry_after_s=2)
        if not targets or not _is_allowed(public_name, allowed):
            hint = did_you_mean(public_name, self.listed(allowed))
            raise ModelNotFound(
                f"model: {quoted(public_name)} does not exist or you have no access to it{hint}",
                param="model",
            )
        ready = self._behind(targets, self._ready) or self._behind(targets, self._coming_back)
        if not ready:
            raise Unavailable(
                f"no ready worker serves {quoted(public_name)}", reason="no_worker", retry_after_s=2
            )
        _, models = self._drawn(ready, [target.weight for target, _ in ready])
        if len(models) > 1:
            # One that has just come may have no tokenizer yet, or never get one.
            models = [each for each in models if self.has_tokenizer(each.model_fp)] or models
        return self._drawn(models, [model.num_ready or 1 for model in models])

    def successor(self, model: ServedModel) -> ServedModel | None:
        """Another model of the same name with ready workers, for requests that this one's workers
        left behind."""
        ready = [each for each in self._ready(model.name) if each.model_fp != model.model_fp]
        known = [each for each in ready if self.has_tokenizer(each.model_fp)] or ready
        return self._drawn(known, [each.num_ready for each in known]) if known else None

    def contested(self) -> set[str]:
        """The fingerprints that share their name with another one, both with ready workers."""
        of_names = [{each.model_fp for each in self._ready(name)} for name in self._by_name]
        return set().union(*(model_fps for model_fps in of_names if len(model_fps) > 1))

    def _drawn(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """One of these, by their weights. There is mostly one, and a draw asks the kernel."""
        return options[0] if len(options) == 1 else self._rng.choices(options, weights)[0]

    def listed(self, allowed: Iterable[str]) -> dict[str, int]:
        """The aliases and names with ready workers that `allowed` lets through, sorted, each with
        the room for prompt and answer that every model behind it has, in tokens."""
        rooms = {alias: self._room(alias) for alias in self._aliases}
        rooms |= {name: self._room(name) for name in self._by_name if name not in rooms}
        names = sorted(name for name, room in rooms.items() if room and _is_allowed(name, allowed))
        return {name: rooms[name] for name in names}

    def ready_behind(self, public_name: str) -> list[ServedModel]:
        """The models with ready workers behind a name."""
        targets = self._targets(public_name)
        return [model for target in targets for model in self._ready(target.model)]

    @property
    def num_ready_models(self) -> int:
        return sum(1 for name in self._by_name if self._ready(name))

    def served(self) -> list[ServedModel]:
        """Every model of the last view."""
        return [model for models in self._by_name.values() for model in models]

    def _targets(self, public_name: str) -> Sequence[AliasTarget]:
        if public_name in self._aliases:
            return self._aliases[public_name]
        return [AliasTarget(public_name)] if public_name in self._known_names else []

    @staticmethod
    def _behind(
        targets: Sequence[AliasTarget], find: Callable[[str], list[ServedModel]]
    ) -> list[tuple[AliasTarget, list[ServedModel]]]:
        """The targets for which there is a model."""
        return [(target, models) for target in targets if (models := find(target.model))]

    def _room(self, public_name: str) -> int:
        """The least room of the ready models behind a name, in tokens; 0 when none is ready."""
        return min((model.max_model_len for model in self.ready_behind(public_name)), default=0)

    def _ready(self, name: str) -> list[ServedModel]:
        """The models of a name with ready workers; when there is none, those with prefill workers
        that stand in."""
        ready = [model for model in self._by_name.get(name, []) if model.num_ready]
        return [model for model in ready if not model.is_stood_in] or ready

    def _coming_back(self, name: str) -> list[ServedModel]:
        """The models of a name that had a ready worker a moment ago."""
        is_recent = self._clock.now() - self._ready_at.get(name, -math.inf) <= COMES_BACK_S
        return self._by_name.get(name, []) if is_recent else []


def _is_true(model_fp: str) -> bool:
    return True


def _is_allowed(name: str, allowed: Iterable[str]) -> bool:
    names = list(allowed)
    return not names or name in names
