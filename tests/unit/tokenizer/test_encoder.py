"""The encoder: ids, hashes, limits and refusals, without threads and children."""

import asyncio
import gc
import json
import traceback
from array import array
from dataclasses import replace

import pytest
from tokenizers import Encoding

from baton.testing.tokenizer_folder import train
from baton.wire import prefix_hash
from baton.wire.failures import InvalidRequest, Overloaded, Unavailable
from baton.wire.v1 import tokenizer_pb2
from services.tokenizer.encoder import EncodeLimits, Encoder
from services.tokenizer.fair_queue import QueueLimits
from services.tokenizer.fleet.model_table import ModelTable
from services.tokenizer.prompt_tokenizer import PromptTokenizer
from services.tokenizer.served_model import ServedModel

KEY = bytes(range(32))
OTHER_KEY = bytes(32)


class SteppingClock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1
        return self.seconds

    def unix(self) -> float:
        return self.seconds


async def run_inline(function, *args):
    return function(*args)


def encoder(*models: ServedModel, **limits: int) -> Encoder:
    return Encoder(
        ModelTable(models, SteppingClock()), EncodeLimits(**limits), SteppingClock(), run_inline
    )


def request(model: ServedModel, **fields: object) -> tokenizer_pb2.EncodeRequest:
    options = {"cache_key": KEY, "block_size": 16, "model_fp": model.folder.fingerprint, **fields}
    return tokenizer_pb2.EncodeRequest(**options)


def chat(content: object) -> tokenizer_pb2.ChatPrompt:
    messages = [{"role": "user", "content": content}]
    return tokenizer_pb2.ChatPrompt(messages_json=json.dumps(messages).encode())


def ids_of(response: tokenizer_pb2.EncodeResponse) -> list[int]:
    return array("I", response.token_ids).tolist()


async def refusal(encoder: Encoder, request: tokenizer_pb2.EncodeRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await encoder.encode(request)
    return caught.value


async def test_text_is_encoded_with_its_frame_and_every_full_block_hashed(chatml: ServedModel):
    response = await encoder(chatml).encode(request(chatml, text="so la ti " * 20, block_size=4))
    tokenizer = train("byte_level")
    assert ids_of(response) == tokenizer.encode("so la ti " * 20).ids
    root = prefix_hash.root_hash(chatml.folder.fingerprint, 4, KEY)
    expected = prefix_hash.block_hashes(root, response.token_ids, 4, KEY)
    assert response.block_hashes == expected
    assert len(expected) == len(ids_of(response)) // 4 * prefix_hash.HASH_BYTES


async def test_the_frame_is_added_and_left_out_as_the_request_says(chatml: ServedModel):
    bos = train("byte_level").token_to_id("<s>")
    text, prompt = {"text": "so la ti"}, {"chat": chat("so")}
    for kind, has_frame in ((text, True), (prompt, False)):
        plain = ids_of(await encoder(chatml).encode(request(chatml, **kind)))
        said = {**kind, "add_special_tokens": not has_frame}
        changed = ids_of(await encoder(chatml).encode(request(chatml, **said)))
        framed, bare = (plain, changed) if has_frame else (changed, plain)
        assert framed[0] == bos
        assert framed[1:] == bare


async def test_other_tenants_key_gives_the_same_ids_and_no_equal_hash(chatml: ServedModel):
    prompts = [request(chatml, text="so la ti " * 20, cache_key=key) for key in (KEY, OTHER_KEY)]
    one, other = [await encoder(chatml).encode(prompt) for prompt in prompts]
    assert one.token_ids == other.token_ids
    hashes = [set(prefix_hash.split_hashes(r.block_hashes)) for r in (one, other)]
    assert not hashes[0] & hashes[1]


async def test_an_adapter_gives_the_same_ids_and_no_equal_hash(chatml: ServedModel):
    fields = {"text": "so la ti " * 20, "block_size": 4}
    asked = [request(chatml, **fields, adapter=name) for name in ("", "a1", "a2")]
    answers = [await encoder(chatml).encode(each) for each in asked]
    assert len({answer.token_ids for answer in answers}) == 1
    root = prefix_hash.root_hash(chatml.folder.fingerprint, 4, KEY, "a1")
    expected = prefix_hash.block_hashes(root, answers[1].token_ids, 4, KEY)
    hashes = [set(prefix_hash.split_hashes(answer.block_hashes)) for answer in answers]
    assert answers[1].block_hashes == expected
    assert len(set.union(*hashes)) == sum(map(len, hashes))


async def test_stages_are_named_and_add_up(chatml: ServedModel):
    stages = (await encoder(chatml).encode(request(chatml, chat=chat("hi")))).stages
    assert [stage.name for stage in stages] == ["queue", "template", "encode", "hash"]
    stages = (await encoder(chatml).encode(request(chatml, text="hi"))).stages
    assert [stage.name for stage in stages] == ["queue", "encode", "hash"]
    assert all(stage.duration_us >= 1_000_000 for stage in stages)


async def test_given_ids_come_back_as_they_are_with_their_hashes(chatml: ServedModel):
    given = array("I", range(5, 25)).tobytes()
    response = await encoder(chatml).encode(request(chatml, token_ids=given))
    assert response.token_ids == given
    assert len(response.block_hashes) == prefix_hash.HASH_BYTES


@pytest.mark.parametrize("bad", ["vocab_size", 2**32 - 1])
async def test_given_id_outside_the_vocabulary_is_named_by_its_index(
    chatml: ServedModel, bad: int | str
):
    bad = chatml.vocab_size if bad == "vocab_size" else bad
    given = array("I", [1, 2, bad, 3]).tobytes()
    error = await refusal(encoder(chatml), request(chatml, token_ids=given))
    assert (error.reason, error.param) == ("invalid_token_id", "prompt[2]")
    assert str(bad) in error.message


async def test_given_bytes_that_are_no_whole_tokens_are_refused(chatml: ServedModel):
    error = await refusal(encoder(chatml), request(chatml, token_ids=b"12345"))
    assert error.param == "prompt"


@pytest.mark.parametrize("prompt", [{"text": "so la"}, {"token_ids": bytes(12)}])
async def test_too_many_tokens_are_refused_in_openais_words(chatml: ServedModel, prompt: dict):
    error = await refusal(encoder(chatml), request(chatml, max_prompt_tokens=2, **prompt))
    assert error.reason == "context_length_exceeded"
    assert error.message == (
        "This model's maximum context length is 3 tokens, of which at least 1 is for the answer."
        " However, your prompt resulted in 3 tokens. Please reduce the length of the prompt."
    )


class NeverEncodesWhole:
    """A model's tokenizer that must not be asked for all ids of a text."""

    def __init__(self, own: PromptTokenizer) -> None:
        self.is_far_longer = own.is_far_longer

    def encode_text(self, text: str) -> Encoding:
        raise AssertionError(f"{len(text)} characters are encoded to be refused")


async def test_a_text_far_beyond_the_limit_is_refused_without_encoding_it(chatml: ServedModel):
    model = replace(chatml, tokenizer=NeverEncodesWhole(chatml.tokenizer))
    far = request(model, max_prompt_tokens=100, text="so la ti " * 100_000)
    error = await refusal(encoder(model), far)
    assert error.reason == "context_length_exceeded"
    assert "your prompt resulted in more than 100 tokens" in error.message


async def test_a_refused_prompt_leaves_no_encoding_behind(chatml: ServedModel):
    """The encoding of a long prompt is 25 times as large as the text."""
    gc.disable()
    try:
        error = await refusal(
            encoder(chatml), request(chatml, max_prompt_tokens=50, text="so la ti " * 40)
        )
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        kept = [value for frame in frames for value in frame.f_locals.values()]
        assert frames
        assert not [value for value in kept if isinstance(value, Encoding)]
    finally:
        gc.enable()


async def test_limit_of_tokens_is_inclusive(chatml: ServedModel):
    response = await encoder(chatml).encode(
        request(chatml, max_prompt_tokens=3, token_ids=bytes(12))
    )
    assert len(ids_of(response)) == 3


@pytest.mark.parametrize("prompt", [{"text": "x" * 11}, {"token_ids": bytes(44)}])
async def test_prompt_over_the_byte_limit_is_refused(chatml: ServedModel, prompt: dict):
    error = await refusal(encoder(chatml, max_prompt_bytes=10), request(chatml, **prompt))
    assert (error.reason, error.row.http_status) == ("body_too_large", 413)


async def test_tools_and_variables_count_towards_the_byte_limit(chatml: ServedModel):
    prompt = chat("hi")
    prompt.tools_json = b" " * 1000
    error = await refusal(encoder(chatml, max_prompt_bytes=900), request(chatml, chat=prompt))
    assert (error.reason, error.param) == ("body_too_large", "messages")


@pytest.mark.parametrize("prompt", [{"text": "a" * 101}, {"chat": chat("a" * 101)}])
async def test_stretch_without_a_break_is_refused(chatml: ServedModel, prompt: dict):
    error = await refusal(encoder(chatml, max_run_chars=100), request(chatml, **prompt))
    assert error.reason == "run_too_long"


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x", "cache_key": b"short"},
        {"text": "x", "block_size": 0},
        {"text": "x", "block_size": 100_000},
        {},
        {"token_ids": b""},
    ],
)
async def test_malformed_requests_are_refused(chatml: ServedModel, fields: dict):
    assert (await refusal(encoder(chatml), request(chatml, **fields))).reason == "invalid_value"


async def test_a_model_that_is_not_loaded_yet_may_be_asked_for_again(chatml: ServedModel):
    with pytest.raises(Unavailable) as refused:
        await encoder(chatml).encode(request(chatml, text="x", model_fp="other"))
    assert refused.value.reason == "no_tokenizer"
    assert refused.value.retry_after_s > 0


async def test_conversation_for_a_model_without_template_is_refused(plain: ServedModel):
    error = await refusal(encoder(plain), request(plain, chat=chat("hi")))
    assert error.reason == "no_chat_template"


async def test_spelled_tokens_of_a_model_without_template_are_text(plain: ServedModel):
    response = await encoder(plain).encode(request(plain, text="</s>"))
    assert train("byte_level").token_to_id("</s>") not in ids_of(response)


async def test_malformed_conversation_is_refused_by_its_field(chatml: ServedModel):
    prompt = tokenizer_pb2.ChatPrompt(messages_json=b"[1]")
    error = await refusal(encoder(chatml), request(chatml, chat=prompt))
    assert (error.reason, error.param) == ("invalid_value", "messages[0]")


async def test_more_prompts_at_once_than_allowed_are_overload(chatml: ServedModel):
    release = asyncio.Event()

    async def wait_and_run(function, *args):
        await release.wait()
        return function(*args)

    limits = EncodeLimits(queue=QueueLimits(max_prompts=2))
    busy = Encoder(ModelTable([chatml], SteppingClock()), limits, SteppingClock(), wait_and_run)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(busy.encode(request(chatml, text="x"))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await busy.encode(request(chatml, text="x"))
        release.set()
    assert all(task.result().token_ids for task in running)
    assert (await busy.encode(request(chatml, text="x"))).token_ids


async def test_two_models_answer_with_their_own_vocabulary(chatml: ServedModel, plain: ServedModel):
    both = encoder(chatml, plain)
    for model in (chatml, plain):
        assert (await both.encode(request(model, text="so la"))).token_ids
    assert chatml.folder.fingerprint != plain.folder.fingerprint
