"""The core as a real process, behind the front's own client: it serves, or says why it cannot."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.engine.process.process_client import EngineSpec, ProcessEngineClient
from baton.engine.protocol.client import CoreNotStarted
from baton.engine.protocol.messages import AddSequence, SamplingParams, Shutdown
from baton.model.load.load import LoadOptions, load_model
from baton.model.torch_runner import TorchRunner
from tests import needs
from tests.kit.compiled import compiled_for
from tests.model.engine import listing_core

MODULE = "baton.worker.core_main"
# For compiling and for several machines (decision 0047).
UNUSED = {"torch._dynamo.convert_frame", "torch.distributed.tensor", "torch._inductor"}

# What only some requests ask for.
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
    {"presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.1},
    {"num_logprobs": 2, "num_prompt_logprobs": 2},
    {"logit_bias": ((5, 1.0),), "min_tokens": 2, "stop_token_ids": (7,)},
)


def _args(folder, *more: str) -> list[str]:
    return ["--model", str(folder), "--dtype", "float32", *more]


@needs.linux
async def test_a_core_process_generates_what_the_reference_does(
    model_folder, load_tiny, prompts, monkeypatch, tmp_path
):
    _, reference = load_tiny("qwen3")
    monkeypatch.setenv(listing_core.REPORT, str(tmp_path / "report"))
    client = await ProcessEngineClient.start(
        EngineSpec(listing_core.__name__),
        _args(model_folder("qwen3"), "--kv-memory", "2MB", "--max-batch", "4"),
        load_timeout_s=200,
    )
    try:
        tokens = await _generate(client, prompts[0], 12)
        for seq_id, options in enumerate(KINDS, 2):
            await _generate(client, prompts[0], 4, seq_id, **options)
        await _ended_by_itself(client)
    finally:
        await client.close()
    assert client.info.model_name == "qwen3"
    assert client.info.max_num_seqs == 4
    assert client.info.num_blocks == 2_000_000 // client.info.kv_spec.row_bytes
    reference.assert_same(prompts[0], reference.generate(prompts[0], 12), tokens)
    report = json.loads((tmp_path / "report").read_text())
    assert "transformers.models.qwen3.modeling_qwen3" in report["modules"]
    assert not UNUSED.intersection(report["modules"])
    # An image has bytecode of all that a core imports, but what only this model's type needs.
    others = ("tests", "transformers.models.qwen3", "encodings")
    known = compiled_for("services.decode_worker", "baton.worker")
    assert [name for name in set(report["modules"]) - known if not name.startswith(others)] == []
    assert report["late"] == []  # no stream waits for an import of another's first request
    assert report["doubled"] == [2, 4, 6]  # the compiler is the real one as soon as it is used


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--model", "./no/such/model"), "no such folder"),
        (("--kv-memory", "20KB"), "raise --kv-memory to"),
    ],
)
async def test_a_core_that_cannot_serve_says_why_in_one_line(model_folder, options, reason):
    with pytest.raises(CoreNotStarted) as caught:
        await ProcessEngineClient.start(
            EngineSpec(MODULE), [*_args(model_folder("qwen3")), *options], load_timeout_s=200
        )
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@needs.linux
def test_a_ready_model_holds_no_page_of_its_file(model_folder, tmp_path):
    # A file of its own: models of other tests may be loaded in this process.
    folder = shutil.copytree(model_folder("llama"), tmp_path / "llama")
    loaded = load_model(str(folder), LoadOptions(dtype="float32"))
    runner = TorchRunner(loaded)
    assert runner.vocab_size == loaded.vocab_size
    assert str(folder) not in Path("/proc/self/maps").read_text()


async def _ended_by_itself(client: ProcessEngineClient) -> None:
    """Until the core has left: `close` would end it within seconds, whatever it still writes."""
    ended = asyncio.Event()
    pidfd = os.pidfd_open(client.pid)
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    try:
        client.send(Shutdown())
        async with asyncio.timeout(200):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)


async def _generate(
    client: ProcessEngineClient,
    prompt: list[int],
    num_tokens: int,
    seq_id: int = 1,
    **options: Any,
) -> list[int]:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, **options)
    token_ids = np.array(prompt, dtype="<u4").tobytes()
    key = b"k" * 32
    client.send(AddSequence(seq_id, "r", 0, "local", token_ids, 0, b"", key, sampling, num_tokens))
    tokens: list[int] = []
    async with asyncio.timeout(200):
        while True:
            events = await client.events()
            tokens += events.token_ids
            if events.finished:
                return tokens
