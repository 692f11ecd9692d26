"""The models that this tokenizer has loaded, by fingerprint, and those that it cannot load.

A call for a model that is being loaded waits for it: its worker is ready, and clients ask already.
"""

import asyncio
from collections.abc import Iterable

from baton.system.clock import Clock
from baton.wire.failures import BatonError, Overloaded, Unavailable
from services.tokenizer import instruments
from services.tokenizer.served_model import ServedModel

# Less than a gateway waits for its prompt.
LOADING_WAIT_S = 8.0
# A router tells gateways and tokenizers of a worker at the same time, or nearly so.
UNKNOWN_WAIT_S = 2.0
MAX_WAITING = 256
LOADING, LOADED, REFUSED = "loading", "loaded", "refused"


class ModelTable:
    """Served models by fingerprint. `waits`: models may be added while calls are served."""

    def __init__(self, models: Iterable[ServedModel], clock: Clock, *, waits: bool = False) -> None:
        self._clock = clock
        self._waits = waits
        self._num_waiting = 0
        self._changed = asyncio.Event()
        self._models: dict[str, ServedModel] = {}
        # The names of those that are being loaded, and of those that cannot be.
        self._loading: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        for model in models:
            self.add(model)

    def get(self, model_fp: str) -> ServedModel:
        """The model with a fingerprint. Raises Unavailable `no_tokenizer`.

        A gateway asks only for models that workers serve: this tokenizer will have it in a moment,
        or another one has it now.
        """
        model = self._models.get(model_fp)
        if model is None:
            raise self._missing(model_fp)
        return model

    async def find(self, model_fp: str) -> ServedModel:
        """The same, but wait for one that is being loaded, or that no router has told of yet.

        Raises Unavailable `no_tokenizer`, Overloaded when too many calls wait.
        """
        if self._is_decided(model_fp):
            return self.get(model_fp)
        if self._num_waiting >= MAX_WAITING:
            raise Overloaded("too many prompts wait for their tokenizer", retry_after_s=1)
        self._num_waiting += 1
        try:
            await self._decided(model_fp)
        finally:
            self._num_waiting -= 1
        return self.get(model_fp)

    def __contains__(self, model_fp: str) -> bool:
        return model_fp in self._models

    def all(self) -> list[ServedModel]:
        return list(self._models.values())

    def expect(self, model_fp: str, name: str) -> None:
        """Note that a model is being loaded, and let calls wait for it."""
        self._refused.pop(model_fp, None)
        self._loading[model_fp] = name
        self._tell()

    def add(self, model: ServedModel) -> None:
        """Serve a model from now on."""
        self._forget(model.folder.fingerprint)
        self._models[model.folder.fingerprint] = model
        self._tell()

    def refuse(self, model_fp: str, name: str) -> None:
        """Note that a model cannot be loaded: calls for it are refused at once."""
        self._forget(model_fp)
        self._refused[model_fp] = name
        self._tell()

    async def drop(self, model_fp: str) -> None:
        """Forget a model, in whatever state it is, and end its renderer."""
        self._forget(model_fp)
        model = self._models.pop(model_fp, None)
        self._tell()
        if model is not None and model.renderer is not None:
            await model.renderer.close()

    async def close(self) -> None:
        """End the models' renderers."""
        for model_fp in list(self._models):
            await self.drop(model_fp)

    def _is_decided(self, model_fp: str) -> bool:
        return model_fp in self._models or model_fp in self._refused or not self._waits

    async def _decided(self, model_fp: str) -> None:
        """Wait until a model is loaded or refused, or for as long as is any use."""
        began_s = self._clock.now()
        while not self._is_decided(model_fp):
            most_s = LOADING_WAIT_S if model_fp in self._loading else UNKNOWN_WAIT_S
            left_s = began_s + most_s - self._clock.now()
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _missing(self, model_fp: str) -> BatonError:
        reason = "no tokenizer has loaded this model yet"
        if model_fp in self._refused:
            reason = "the tokenizer of this model cannot be loaded; the service's log says why"
        return Unavailable(reason, reason="no_tokenizer", retry_after_s=2)

    def _forget(self, model_fp: str) -> None:
        self._loading.pop(model_fp, None)
        self._refused.pop(model_fp, None)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        gauge = instruments.TOKENIZER_MODELS
        gauge.clear()
        for model in self._models.values():
            gauge.labels(model.folder.name, LOADED).inc()
        for state, names in ((LOADING, self._loading), (REFUSED, self._refused)):
            for name in names.values():
                gauge.labels(name, state).inc()
