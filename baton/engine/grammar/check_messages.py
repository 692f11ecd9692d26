"""The messages between the front and the child that tries grammars, in msgpack."""

import msgspec


class CheckSetup(msgspec.Struct, array_like=True):
    """The vocabulary that grammars are tried with, and the time for one."""

    tokenizer_file: str
    vocab_size: int
    eos_token_ids: list[int]
    # Processor time for one grammar.
    max_cpu_s: float


class Verdict(msgspec.Struct, array_like=True):
    """`refusal` is one line for the client. `text` is the grammar's own when rewritten."""

    refusal: str | None = None
    text: str | None = None
