"""The LoRA adapters of one engine: which are served, and which of them vLLM has loaded.

vLLM would load an adapter in the step that needs it, and a fault there would end the core. So each
is loaded before a sequence with it is taken in, and is not given up while a sequence has it; the
one that was asked for longest ago goes first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest

from baton.engine.protocol.adapter_messages import Adapter, AdaptersServed
from baton.wire.fingerprint import ADAPTER_FILES, adapter_fingerprint

# vLLM's kernels for CPUs compute a row without an adapter with the last of its places, whenever
# another row of the step has one: that place must stay empty.
NUM_EMPTY_PLACES = 1
# The files are somebody else's, and vLLM has many ways to find them bad.
_FAULTS = (
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    TypeError,
    ValueError,
    VLLMClientError,
)


class Adapters:
    """The adapters of one engine. `loading` is the context in which one is loaded."""

    def __init__(self, core: Any, num_slots: int) -> None:
        self.loading: Callable[[], AbstractContextManager[None]] = nullcontext
        self._core = core
        self._model = Path(core.vllm_config.model_config.model)
        self._num_slots = num_slots
        self._served: dict[str, LoRARequest] = {}
        # The least recently asked for first.
        self._loaded: OrderedDict[str, LoRARequest] = OrderedDict()
        self._last_number = 0

    def serve(self, wanted: Iterable[Adapter], in_use: Set[str]) -> AdaptersServed:
        """Serve these and no others; each new one is loaded once, to see that it can be."""
        known, self._served = self._served, {}
        faults: list[tuple[str, str]] = []
        for adapter in wanted:
            old = known.get(adapter.fingerprint)
            self._served[adapter.fingerprint] = self._request(adapter)
            is_new = old is None or old.lora_path != adapter.folder
            can_try = is_new and self._has_place(in_use)
            if can_try and (fault := self.load(adapter.fingerprint, in_use)):
                faults.append((adapter.fingerprint, fault))
        for fingerprint in self._loaded.keys() - self._served.keys() - in_use:
            self._unload(fingerprint)
        return self.served(faults)

    def served(self, faults: list[tuple[str, str]]) -> AdaptersServed:
        """The adapters that are served now, beside these faults."""
        return AdaptersServed(list(self._served), faults)

    def is_served(self, fingerprint: str) -> bool:
        """Sequences may have this adapter."""
        return fingerprint in self._served

    def load(self, fingerprint: str, in_use: Set[str]) -> str:
        """Load an adapter if it is not; returns why it cannot be, or nothing. One whose files are
        not good is served no longer."""
        if fingerprint not in self._served:
            return "the adapter of the request is not served here"
        if fingerprint in self._loaded:
            self._loaded.move_to_end(fingerprint)
            return ""
        if not self._has_place(in_use):
            return f"{self._num_slots} adapters are in use"
        while len(self._loaded) >= self._num_slots:
            self._unload(next(each for each in self._loaded if each not in in_use))
        return self._read(fingerprint)

    def request_of(self, fingerprint: str) -> LoRARequest | None:
        """The adapter in vLLM's words; None for a sequence of the model alone."""
        return self._loaded.get(fingerprint)

    def _has_place(self, in_use: Set[str]) -> bool:
        return len(in_use & self._loaded.keys()) < self._num_slots

    def _read(self, fingerprint: str) -> str:
        request = self._served[fingerprint]
        with self.loading():
            fault: str = self._fault_of(request) or max(self._in_ranks(_load, request))
        if fault:
            self._in_ranks(_unload, request)
            del self._served[fingerprint]
        else:
            self._loaded[fingerprint] = request
        return fault

    def _fault_of(self, request: LoRARequest) -> str:
        folder = Path(request.lora_path)
        try:
            if adapter_fingerprint(folder) != request.lora_name:
                return "its files are others now"
            _check(folder, self._model)
        except _FAULTS as error:
            return _text_of(error)
        return ""

    def _in_ranks(self, function: Callable[[Any, LoRARequest], Any], request: LoRARequest) -> Any:
        return self._core.model_executor.collective_rpc(function, args=(request,))

    def _unload(self, fingerprint: str) -> None:
        self._in_ranks(_unload, self._loaded.pop(fingerprint))

    def _request(self, adapter: Adapter) -> LoRARequest:
        if (loaded := self._loaded.get(adapter.fingerprint)) is not None:
            return loaded
        self._last_number += 1
        return LoRARequest(adapter.fingerprint, self._last_number, adapter.folder)


def _check(folder: Path, model: Path) -> None:
    """Raise ValueError for an adapter of another model, which vLLM would take as far as it fits,
    and for one of the last layer."""
    shapes = {name: shape for path in model.glob("*.safetensors") for name, shape in _shapes(path)}
    for name, (num_out, num_in) in _shapes(folder / ADAPTER_FILES[1]):
        module, _, part = name.removeprefix("base_model.model.").partition(".lora_")
        if module.endswith("lm_head"):
            raise ValueError("adapters of the last layer, lm_head, are not served")
        base_out, base_in = shapes.get(f"{module}.weight", (num_out, num_in))
        width, wanted = (num_out, base_out) if part.startswith("B") else (num_in, base_in)
        if width != wanted:
            raise ValueError(f"{name} has {width} where the model has {wanted}")


def _shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    """The names and shapes of the matrices in a file."""
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is not a mapping
            shape = file.get_slice(name).get_shape()
            if len(shape) == 2:
                yield name, shape


def _text_of(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def prepare(core: Any) -> None:
    """Change what vLLM does with adapters where that would be wrong here, in each rank."""
    core.model_executor.collective_rpc(_prepare)


# In a rank. `worker` is vLLM's. An error must not leave it: the answers of the other ranks would be
# taken for those to the next call.


def _load(worker: Any, request: LoRARequest) -> str:
    try:
        worker.add_lora(request)
    except _FAULTS as error:
        return _text_of(error)
    return ""


def _unload(worker: Any, request: LoRARequest) -> None:
    worker.remove_lora(request.lora_int_id)


def _prepare(worker: Any) -> None:
    """Change what is said at `prepare`.

    vLLM's empty steps, which are the probes, run without adapters: they would put empty ones in the
    places of those that are loaded, and give all up at their end. The last layer has none: with
    logprobs of a prompt vLLM's code for CPUs takes the wrong rows for it, and dies.
    """
    runner = worker.model_runner
    runner.maybe_dummy_run_with_lora = partial(_without_adapters, runner)
    for kernels in runner.lora_manager._adapter_manager.punica_wrapper_mapping.values():
        kernels.add_lora_logits = lambda logits, *_: logits


@contextmanager
def _without_adapters(
    runner: Any, config: Any, num_tokens: Any, num_samples: Any, *_: Any
) -> Iterator[None]:
    runner._set_active_loras((0,) * int(num_samples.sum()), (0,) * int(num_tokens.sum()), set())
    yield
