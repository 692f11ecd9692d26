"""The names of transformers that we use, imported without what Baton has no use for.

transformers marks functions for torch's compiler and prepares for models that are cut over several
machines. Baton compiles nothing and runs a model in one process: a third of the modules of a core
are left out here (decision 0047), and its files are not read at each import (decision 0101).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import torch

from baton.model.transformers_exports import kept_exports

COMPILER = "torch._dynamo"
_USED_BY_MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"


class LazyCompiler(ModuleType):
    """The package `torch._dynamo`, not run before somebody asks for more than a mark.

    A mark is a decorator that says how to compile a function; here it leaves the function alone.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # what inspect asks each module
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__path__ = list(spec.submodule_search_locations or ())
        spec.loader.exec_module(self)
        return getattr(self, name)


def _mark(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
    return (lambda marked: marked) if function is None else function


def _make_compiler_lazy() -> None:
    spec = find_spec(COMPILER)
    assert spec is not None
    module = module_from_spec(spec)
    for mark in ("disable", "allow_in_graph", "assume_constant_result"):
        setattr(module, mark, _mark)
    sys.modules[COMPILER] = module
    # While the package has a path, its modules can be imported without it.
    import_module(_USED_BY_MASKS)
    del module.__path__
    module.__class__ = LazyCompiler


@contextmanager
def _undistributed() -> Iterator[None]:
    """transformers asks once whether torch is distributed, and remembers the answer given here."""
    answer = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = answer


if COMPILER not in sys.modules:
    _make_compiler_lazy()
with _undistributed(), kept_exports():
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        AutoConfig,
        PretrainedConfig,
        PreTrainedModel,
    )
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.utils import logging

__all__ = [
    "CONFIG_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AttentionInterface",
    "AttentionMaskInterface",
    "AutoConfig",
    "PreTrainedModel",
    "PretrainedConfig",
    "logging",
]
