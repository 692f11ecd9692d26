"""Logprobs in the three shapes that OpenAI's endpoints have for them.

A token is text and bytes: the joined bytes of all tokens are the answer, also where a character is
cut between two tokens. Bytes that are not a character are U+FFFD in chat and Responses, and
`bytes:\\xe2\\x80` in legacy completions, which have no bytes.
"""

from collections.abc import Sequence
from typing import Any

from services.gateway.openai.generation import Likelihood, TokenLogprob


def chat_object(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chunk of a chat completion."""
    return {**chat_columns(entries), "refusal": None}


def chat_columns(entries: Sequence[TokenLogprob]) -> dict[str, list[dict[str, Any]]]:
    """The list of tokens, which chat and Responses have."""
    content = [
        {
            **_token(entry.token, entry.logprob),
            "top_logprobs": [_token(*likelihood) for likelihood in entry.top],
        }
        for entry in entries
    ]
    return {"content": content}


def completion_object(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a legacy completion: columns, with null for a prompt's first token.

    `top_logprobs` has the token itself too, as at OpenAI.
    """
    return {
        "tokens": [_legacy_text(entry.token) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_legacy_top(entry) for entry in entries],
        "text_offset": [entry.text_offset for entry in entries],
    }


def response_list(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """`logprobs` of an event of a response."""
    return chat_columns(entries)["content"]


def _token(token: bytes, logprob: float | None) -> dict[str, Any]:
    text = token.decode("utf-8", errors="replace")
    return {"token": text, "logprob": logprob, "bytes": list(token)}


def _legacy_text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _legacy_top(entry: TokenLogprob) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    own = Likelihood(entry.token, entry.logprob)
    top = {} if own in entry.top else {_legacy_text(own.token): own.logprob}
    # The likelier of two tokens with one text stays.
    best_last = {_legacy_text(token): logprob for token, logprob in reversed(entry.top)}
    return dict(reversed(best_last.items())) | top
