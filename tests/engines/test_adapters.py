"""LoRA adapters, on the engines that serve them: vLLM's."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from baton.engine.protocol.adapter_messages import Adapter, AdaptersServed
from baton.testing.tiny_adapters import write_adapter
from baton.wire.fingerprint import adapter_fingerprint
from baton.wire.prefix_hash import block_hashes, root_hash, split_hashes
from tests.engines.conftest import MODEL, NUM_ADAPTER_SLOTS, VLLM_PYTHON
from tests.engines.driven_core import DrivenCore

pytestmark = pytest.mark.parametrize("running", ["vllm", "vllm-on-2-ranks"], indirect=True)

KEYS = (bytes([number]) * 32 for number in count(1))
PROMPT = list(range(300, 430))  # four full blocks and a part
NUM_TOKENS = 16
GREEDY = {"max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One adapter more than there are places."""
    root = tmp_path_factory.mktemp("adapters")
    numbers = range(1, NUM_ADAPTER_SLOTS + 2)
    return [write_adapter(root / str(number), MODEL, seed=number) for number in numbers]


@pytest.fixture
def adapters(core: DrivenCore, folders: list[Path]) -> Iterator[list[str]]:
    """The fingerprints of adapters that are served."""
    wanted = [Adapter(adapter_fingerprint(folder), str(folder)) for folder in folders]
    served = core.serve(*wanted)
    assert served == AdaptersServed([each.fingerprint for each in wanted])
    yield served.fingerprints
    core.settle()
    core.serve()


@pytest.fixture
def key() -> bytes:
    """A tenant of which the cache knows nothing."""
    return next(KEYS)


def answers_together(core: DrivenCore, names: list[str], key: bytes) -> list[list[int]]:
    fields = [{**GREEDY, "adapter": name, "cache_key": key} for name in names]
    seq_ids = core.add_together(*((PROMPT, each) for each in fields))
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    return [core.tokens[seq_id] for seq_id in seq_ids]


def test_adapters_and_the_model_in_one_batch_answer_as_vllm_does_alone(
    core: DrivenCore, adapters: list[str], folders: list[Path], key: bytes
) -> None:
    names = ["", *adapters[:NUM_ADAPTER_SLOTS]]
    first = answers_together(core, names, key)
    core.shared_steps.clear()
    together = answers_together(core, names, key)  # now that the prompts are cached
    assert together == first
    assert any(len(step) == len(names) for step in core.shared_steps)
    assert sorted(names[1:]) in [each.running_adapters for each in core.vllm]
    paths = ["", *map(str, folders[:NUM_ADAPTER_SLOTS])]
    asked = {
        "prompt": PROMPT,
        "num_tokens": NUM_TOKENS,
        "adapters": paths,
        "block_size": core.block_size,
        "max_model_len": core.info.max_model_len,
    }
    program = [VLLM_PYTHON, "-m", "tests.engines.lone_vllm", str(MODEL)]
    found = subprocess.run(
        program, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    alone = json.loads(found.stdout.splitlines()[-1])
    assert together == alone
    assert len(set(map(tuple, alone))) == len(names), "the adapters change nothing"


def test_adapters_and_the_model_never_share_cached_blocks(
    core: DrivenCore, adapters: list[str], key: bytes
) -> None:
    names = ["", *adapters]
    for _ in range(2):
        for name in names:
            core.answer(PROMPT, **GREEDY, adapter=name, cache_key=key)
    last = [core.started[seq_id].num_cached_tokens for seq_id in sorted(core.started)[-8:]]
    num_full = len(PROMPT) // core.block_size * core.block_size
    assert last == [0] * len(names) + [num_full] * len(names)
    tokens = b"".join(token.to_bytes(4, "little") for token in PROMPT)
    hashes = [
        split_hashes(
            block_hashes(
                root_hash(core.info.model_fp, core.block_size, key, name),
                tokens,
                core.block_size,
                key,
            )
        )
        for name in names
    ]
    assert {each for chain in hashes for each in chain} <= core.snapshot()
    assert len({chain[0] for chain in hashes}) == len(names)


def test_more_adapters_than_places_take_turns(
    core: DrivenCore, adapters: list[str], key: bytes
) -> None:
    first = [core.answer(PROMPT, **GREEDY, adapter=name, cache_key=key) for name in adapters]
    again = [core.answer(PROMPT, **GREEDY, adapter=name, cache_key=key) for name in adapters]
    assert again == first
    assert len(set(map(tuple, first))) == len(adapters)


def test_an_adapter_finds_no_room_while_others_have_all_places(
    core: DrivenCore, adapters: list[str]
) -> None:
    *busy, other = adapters
    parked = [core.add(PROMPT, **GREEDY, adapter=name, credit=1) for name in busy]
    core.until(lambda: all(core.tokens.get(seq_id) for seq_id in parked))
    refused = core.add(PROMPT, **GREEDY, adapter=other)
    core.until(lambda: refused in core.refused)
    assert core.refused[refused].reason == "no_room"
    core.end(parked[0])
    assert len(core.answer(PROMPT, **GREEDY, adapter=other)) == NUM_TOKENS


def test_an_adapter_is_kept_while_an_answer_waits_for_credit(
    core: DrivenCore, adapters: list[str]
) -> None:
    kept, *others = adapters
    whole = core.answer(PROMPT, **GREEDY, adapter=kept)
    parked = core.add(PROMPT, **GREEDY, adapter=kept, credit=4)
    core.until(lambda: len(core.tokens.get(parked, ())) == 4)
    for name in others:
        core.answer(PROMPT, **GREEDY, adapter=name)
    core.serve()
    core.credit(parked, 100)
    core.until(lambda: parked in core.finished)
    assert core.tokens[parked] == whole


def test_an_idle_core_keeps_adapters_when_it_is_probed(
    core: DrivenCore, adapters: list[str], key: bytes
) -> None:
    names = ["", *adapters[:NUM_ADAPTER_SLOTS]]
    whole = answers_together(core, names, key)
    core.probe()
    assert answers_together(core, names, key) == whole


def test_a_prompt_with_an_adapter_is_handed_over_and_goes_on_behind_tokens(
    core: DrivenCore, adapters: list[str], key: bytes
) -> None:
    fields = {**GREEDY, "adapter": adapters[0], "cache_key": key}
    whole = core.answer(PROMPT, **fields)
    behind = core.answer(PROMPT, **fields, emitted=whole[:5])
    assert behind == whole[5:]
    source, first_token = core.prefill(PROMPT, **fields)
    target = core.add(PROMPT, kind="remote", **fields)
    core.bind(target)
    core.hand_over(source, target, first_token)
    core.until(lambda: target in core.finished)
    assert [first_token, *core.tokens[target]] == whole


def test_choices_with_an_adapter_are_each_what_it_is_alone(
    core: DrivenCore, adapters: list[str]
) -> None:
    sampled = {**GREEDY, "adapter": adapters[1], "temperature": 0.9, "seed": 3}
    seq_ids = core.add_choices(PROMPT, 2, **sampled)
    core.until(lambda: set(seq_ids) <= core.finished.keys())
    alone = [core.answer(PROMPT, **sampled, choice=choice) for choice in range(2)]
    assert [core.tokens[seq_id] for seq_id in seq_ids] == alone


def test_an_adapter_that_cannot_be_loaded_is_named_and_not_served(
    core: DrivenCore, adapters: list[str], folders: list[Path], tmp_path: Path
) -> None:
    good, broken = folders[0], tmp_path / "broken"
    shutil.copytree(good, broken)
    with (broken / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1000)
    large = write_adapter(tmp_path / "large", MODEL, seed=5, rank=64)
    foreign = write_adapter(tmp_path / "foreign", MODEL, seed=5, hidden_size=128)
    folders = [broken, large, foreign]
    bad = [Adapter(adapter_fingerprint(folder), str(folder)) for folder in folders]
    served = core.serve(Adapter(adapters[0], str(good)), *bad)
    assert served.fingerprints == [adapters[0]]
    assert [name for name, fault in served.faults if fault] == [each.fingerprint for each in bad]
    seq_id = core.add(PROMPT, **GREEDY, adapter=bad[0].fingerprint)
    core.until(lambda: seq_id in core.refused)
    assert core.refused[seq_id].reason == "no_room"
    assert len(core.answer(PROMPT, **GREEDY, adapter=adapters[0])) == NUM_TOKENS


def test_an_adapter_whose_files_have_changed_is_served_no_longer(
    core: DrivenCore, adapters: list[str], folders: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(folders[0], tmp_path / "own")
    own = Adapter("0" * 32, str(tmp_path / "own"))  # as if its files were others then
    served = core.serve(own, Adapter(adapters[1], str(folders[1])))
    assert served.fingerprints == [adapters[1]]
    assert served.faults == [(own.fingerprint, "its files are others now")]
