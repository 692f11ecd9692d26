"""The child process that reads a tokenizer.json before the service does (`tokenizer_trial.py`)."""

from collections.abc import Callable

from tokenizers import Tokenizer

_TEXT = "One of 2 words, für alle: 你好!"


def build_handler(_setup: bytes) -> tuple[Callable[[bytes], bytes], bytes]:
    """Requests are files; their answers are empty. What can be raised here the service says."""
    return try_file, b""


def try_file(content: bytes) -> bytes:
    """Read a file, and do with it what services do: encode, decode, and read it as it is told on.

    What the library raises for a file the service reads itself, and refuses by that.
    """
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.decode(tokenizer.encode(_TEXT).ids)
        Tokenizer.from_str(tokenizer.to_str())
    except BaseException as error:
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
    return b""
