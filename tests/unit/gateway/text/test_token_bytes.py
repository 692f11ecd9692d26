"""Bytes of single tokens add up to the text that the tokenizer decodes."""

import functools

import pytest
from tokenizers import Tokenizer, decoders

from baton.testing.tokenizer_folder import ADDED, EOS, FAMILIES, SPECIAL, Family, train
from services.gateway.text.token_bytes import TokenBytes

TEXT = 'Kenta remi {"x": 1}\n日本語 naïve café 😀 — “quotes”, a <0x41> Ā'


@functools.cache
def trained(family: Family) -> Tokenizer:
    return train(family)


def bytes_of(tokenizer: Tokenizer) -> TokenBytes:
    return TokenBytes(tokenizer, tokenizer.to_str().encode())


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_of_tokens_join_to_the_decoded_text(family: Family) -> None:
    tokenizer = trained(family)
    token_bytes = bytes_of(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    joined = b"".join(map(token_bytes, ids)).decode()
    assert joined.removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_character_cut_between_tokens_is_its_bytes() -> None:
    tokenizer = trained("byte_fallback")
    token_bytes = bytes_of(tokenizer)
    ids = tokenizer.encode("🜚", add_special_tokens=False).ids
    assert [token_bytes(i) for i in ids[-4:]] == [b"\xf0", b"\x9f", b"\x9c", b"\x9a"]


@pytest.mark.parametrize("family", FAMILIES)
def test_control_tokens_are_their_names_and_only_special_ones_have_no_text(family: Family) -> None:
    tokenizer = trained(family)
    token_bytes = bytes_of(tokenizer)
    for name in (EOS, SPECIAL[0], ADDED[0]):
        assert token_bytes(tokenizer.token_to_id(name)) == name.encode()
    assert tokenizer.token_to_id(EOS) in token_bytes.special_ids
    assert tokenizer.token_to_id(ADDED[0]) not in token_bytes.special_ids


def test_an_id_without_a_token_has_no_bytes() -> None:
    assert bytes_of(trained("byte_level"))(1_000_000) == b""


def test_an_unknown_decoder_is_asked_token_by_token() -> None:
    tokenizer = Tokenizer.from_str(trained("byte_level").to_str())
    tokenizer.decoder = decoders.WordPiece()
    token_bytes = bytes_of(tokenizer)
    [token_id, *_] = tokenizer.encode("Kenta", add_special_tokens=False).ids
    assert token_bytes(token_id) == tokenizer.decode([token_id]).encode()
