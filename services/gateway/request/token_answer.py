"""The answers of /tokenize and /detokenize, and the text of a prompt that is token ids: in pieces,
between which other requests run."""

import asyncio
from array import array
from collections.abc import Iterator

from baton.wire.failures import InvalidRequest, quoted
from services.gateway.openai import limits
from services.gateway.openai.generation import Delta, Identity, PromptTokens, TokenDetails
from services.gateway.request.incoming import AnswerSink
from services.gateway.request.job import Job, ValidRequest
from services.gateway.text.detokenize import PIECE_TOKENS, TextModel, text_pieces


def token_identity(valid: ValidRequest) -> Identity:
    """The identity of an answer that no model gives."""
    return Identity(
        request_id=valid.request_id,
        created_unix_s=0,
        model=valid.request.model,
        system_fingerprint=valid.model.system_fingerprint,
        num_choices=0,
        max_model_len=valid.model.max_model_len,
    )


async def tell_tokens(
    token_ids: bytes, text_model: TextModel, sink: AnswerSink, *, with_names: bool
) -> None:
    """Write the ids of a prompt's tokens, and their names in the vocabulary if wanted."""
    ids = array("I", token_ids)
    for start in range(0, len(ids), PIECE_TOKENS):
        piece = tuple(ids[start : start + PIECE_TOKENS])
        names = tuple(map(text_model.token_bytes.name, piece)) if with_names else ()
        details = TokenDetails(True, piece, token_names=names)
        await sink.deltas([Delta(0, "", details=details)])
        await asyncio.sleep(0)


async def tell_text(valid: ValidRequest, text_model: TextModel, sink: AnswerSink) -> int:
    """Write the text of a request's tokens; returns their number. Raises InvalidRequest."""
    assert isinstance(valid.request.prompt, PromptTokens), "its body has tokens"
    ids = array("I", valid.request.prompt.token_ids)
    for start in range(0, len(ids), PIECE_TOKENS):
        largest = max(ids[start : start + PIECE_TOKENS])
        if largest >= valid.model.vocab_size:
            message = f"tokens: token id {quoted(largest)} is not below {valid.model.vocab_size}"
            raise InvalidRequest(message, reason="invalid_token_id", param="tokens")
        await asyncio.sleep(0)
    num_chars = 0
    for text in text_pieces(ids, text_model.decoder):
        num_chars += len(text)
        if num_chars > limits.MAX_TOLD_CHARS:
            message = f"tokens: their text has over {limits.MAX_TOLD_CHARS} characters"
            raise InvalidRequest(message, reason="invalid_value", param="tokens")
        await sink.deltas([Delta(0, text)])
        await asyncio.sleep(0)
    return len(ids)


def token_texts(job: Job) -> Iterator[str]:
    """The text of a prompt of token ids, in pieces; nothing of another one."""
    if isinstance(job.request.prompt, PromptTokens):
        yield from text_pieces(array("I", job.prompt.token_ids), job.prompt.text_model.decoder)
