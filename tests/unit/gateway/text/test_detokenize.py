"""Tokens to text, one at a time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton.demo_model import demo_model_path
from baton.wire.failures import InternalFailure
from services.gateway.text.detokenize import TokenTexts, WholeTexts, load_text_model
from tests.unit.gateway.fakes import EOS, artifact, tokenizer_json

BYTES = Tokenizer.from_str(tokenizer_json().decode())
DEMO = Tokenizer.from_file(str(demo_model_path() / "tokenizer.json"))


def metaspace_tokenizer() -> Tokenizer:
    """A sentencepiece-like tokenizer with byte fallback: a leading space is dropped."""
    pieces = ["<unk>", "▁Hello", "▁wor", "ld", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    return Tokenizer.from_str(
        msgspec.json.encode(
            {
                "version": "1.0",
                "added_tokens": [],
                "decoder": {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                        {"type": "ByteFallback"},
                        {"type": "Fuse"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                    ],
                },
                "model": {
                    "type": "BPE",
                    "vocab": {piece: index for index, piece in enumerate(pieces)},
                    "merges": [],
                    "unk_token": "<unk>",
                },
            }
        ).decode()
    )


def texts_of(decoder: Tokenizer, ids: list[int], context: list[int] | None = None) -> list[str]:
    following = TokenTexts(decoder, context or [])
    return [*(following.add(token_id) for token_id in ids), following.flush()]


@given(st.text(max_size=60))
def test_pieces_join_to_the_text_and_hold_no_half_character(text: str) -> None:
    pieces = texts_of(BYTES, list(text.encode()))
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 4095), max_size=40))
def test_known_texts_of_tokens_make_the_same_pieces_as_decoding_does(ids: list[int]) -> None:
    known = TokenTexts(DEMO, [], whole_texts=WholeTexts(DEMO))
    pieces = [*(known.add(token_id) for token_id in ids), known.flush()]
    assert pieces == texts_of(DEMO, ids)


def test_only_decoders_that_join_bytes_have_texts_of_tokens() -> None:
    assert load_text_model(artifact()).whole_texts is not None
    files = {"tokenizer.json": metaspace_tokenizer().to_str().encode()}
    assert load_text_model(msgspec.msgpack.encode(files)).whole_texts is None


def test_special_tokens_have_no_text() -> None:
    assert texts_of(BYTES, [*b"ab", EOS, *b"c"]) == ["a", "b", "", "c", ""]


def test_special_tokens_have_text_where_that_is_asked_for() -> None:
    texts = TokenTexts(BYTES, [], skips_special=False)
    shown = "".join(texts.add(token_id) for token_id in [*b"ab", EOS])
    assert shown == "ab" + BYTES.decode([EOS], False)
    assert len(shown) > len("ab")


def test_a_cut_character_is_one_replacement_character_at_the_end() -> None:
    assert texts_of(BYTES, list("é😀".encode())[:5]) == ["", "é", "", "", "", "\ufffd"]
    fallback = metaspace_tokenizer()
    cut = [fallback.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()[:3]]
    assert texts_of(fallback, cut)[-1] == "\ufffd"


def test_garbage_bytes_do_not_hold_the_text_back_for_ever() -> None:
    pieces = texts_of(BYTES, [0x80] * 100 + list(b"ok"))
    assert sum(len(piece) for piece in pieces[:60]) > 20
    assert "".join(pieces).endswith("ok")


def test_byte_fallback_characters_come_whole() -> None:
    fallback = metaspace_tokenizer()
    ids = [fallback.token_to_id(f"<0x{byte:02X}>") for byte in "你好".encode()]
    assert texts_of(fallback, ids) == ["", "", "你", "", "", "好", ""]


def test_the_space_between_words_is_kept() -> None:
    assert "".join(texts_of(metaspace_tokenizer(), [1, 2, 3, 4])) == "Hello world!"


def test_a_continuation_keeps_its_leading_space() -> None:
    assert "".join(texts_of(metaspace_tokenizer(), [2, 3], context=[1])) == " world"
    assert "".join(texts_of(metaspace_tokenizer(), [2, 3])) == "world"


def test_greedy_defaults_come_from_the_artifact() -> None:
    assert load_text_model(artifact({"do_sample": False})).default_temperature == 0.0
    assert load_text_model(artifact({"temperature": 0.6})).default_temperature is None
    assert load_text_model(artifact()).default_temperature is None


def test_an_artifact_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InternalFailure):
        load_text_model(msgspec.msgpack.encode({"other.json": b"{}"}))
