import pytest

from baton.runtime.environment import SettingsError, parse
from baton.worker.settings import ENVIRONMENT_PREFIX, Settings


def load(**values: str) -> Settings:
    environment = {ENVIRONMENT_PREFIX + name.upper(): text for name, text in values.items()}
    return parse(Settings, ENVIRONMENT_PREFIX, environment)


def test_the_core_gets_what_was_set_and_nothing_empty() -> None:
    arguments = load(model="/models/demo", max_batch="8", kv_memory="1GiB").core_arguments()

    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs["--model"] == "/models/demo"
    assert pairs["--max-batch"] == "8"
    assert pairs["--kv-memory"] == "1GiB"
    assert "--model-name" not in pairs
    assert "--max-model-len" not in pairs
    assert "--kv-memory" not in load(model="m").core_arguments()


def test_a_worker_is_deterministic_on_request_and_on_a_cpu_only() -> None:
    assert "--deterministic off" in " ".join(load(model="m").core_arguments())
    asked = load(model="m", deterministic="on")
    assert "--deterministic on" in " ".join(asked.core_arguments())
    with pytest.raises(SettingsError, match="deterministic is for device cpu only"):
        load(model="m", deterministic="on", device="cuda")


def test_several_ranks_are_for_vllm_and_one_that_hangs_ends_the_worker_soon() -> None:
    assert "--tensor-parallel" not in load(model="m").core_arguments()
    assert load(model="m").watch_limits().hang_s == 10
    asked = load(model="m", engine="vllm", tensor_parallel="2")
    assert "--tensor-parallel 2" in " ".join(asked.core_arguments())
    limits = asked.watch_limits()
    assert limits.stall_s + limits.hang_s < 3
    with pytest.raises(SettingsError, match="tensor_parallel above 1 is for engine vllm only"):
        load(model="m", tensor_parallel="2")


def test_experts_are_divided_among_several_ranks_only() -> None:
    asked = load(model="m", engine="vllm", tensor_parallel="2", expert_parallel="on")
    assert "--expert-parallel on" in " ".join(asked.core_arguments())
    with pytest.raises(SettingsError, match="expert_parallel needs tensor_parallel above 1"):
        load(model="m", engine="vllm", expert_parallel="on")


def test_what_is_unproven_must_be_asked_for() -> None:
    assert "unproven" not in " ".join(load(model="m", engine="vllm").core_arguments())
    asked = load(model="m", engine="vllm", unproven="on")
    assert "--unproven on" in " ".join(asked.core_arguments())
    both = load(model="m", unproven="on")
    assert "unproven" not in " ".join(both.core_arguments()), "it is about vLLM's builds alone"


def test_adapters_are_for_the_engine_that_has_them() -> None:
    asked = load(model="m", engine="vllm", adapters="/adapters", adapter_slots="3")
    assert "--adapter-slots 3 --adapter-rank 16" in " ".join(asked.core_arguments())
    assert "adapter" not in " ".join(load(model="m", engine="vllm").core_arguments())
    with pytest.raises(SettingsError, match="adapters are for engine vllm only"):
        load(model="m", adapters="/adapters")
    with pytest.raises(SettingsError, match="adapter_rank 17"):
        load(model="m", engine="vllm", adapter_rank="17")


def test_a_worker_without_a_model_does_not_start() -> None:
    with pytest.raises(SettingsError, match="BATON_WORKER_MODEL: not set"):
        load()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("block_size", "17"),
        ("threads", "0"),
        ("max_step_tokens", "2"),
        ("max_model_len", "0"),
        ("kv_memory", "much"),
        ("kv_memory", "0"),
        ("memory_share", "1.5"),
    ],
)
def test_impossible_sizes_are_named(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load(model="m", **{name: text})


def test_whether_steps_are_compiled_is_for_vllm_to_know() -> None:
    asked = load(model="m", engine="vllm", compile="off")
    assert "--compile off" in " ".join(asked.core_arguments())
    for other in (load(model="m", engine="vllm"), load(model="m", compile="off")):
        assert "compile" not in " ".join(other.core_arguments())
