"""Counts the weights that transformers loads, through its hook for progress bars."""

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from baton.model.transformers_api import logging
from baton.system.load_progress import LoadStage, Tell

WEIGHTS = "weights"


@contextmanager
def told_weights(tell: Tell) -> Iterator[None]:
    """Tell each weight that is loaded within this context."""

    def watched(factory: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        bar = factory(*args, **named)
        return _counted(bar, args[0], tell) if args and isinstance(args[0], Sized) else bar

    tell(LoadStage(WEIGHTS))
    before = logging.set_tqdm_hook(watched)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _counted(bar: Any, items: Sized, tell: Tell) -> Iterator[Any]:
    for number, item in enumerate(bar, start=1):
        tell(LoadStage(WEIGHTS, number, len(items)))
        yield item
