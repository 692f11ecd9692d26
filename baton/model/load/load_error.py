"""A model that cannot be loaded or served, described in one line for a person.

Without torch: programs that only fetch or name models report it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

# Files that are missing, malformed or do not fit together; modules that want other arguments.
_MODEL_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)


class LoadError(Exception):
    """A model cannot be loaded or served. The message is one line that names model and reason."""


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Make LoadErrors of what transformers raises for unusable files and odd architectures."""
    try:
        yield
    except _MODEL_ERRORS as error:
        raise LoadError(f"model {name}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, never empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
