"""A core with vLLM says in one line what it cannot do, before it loads anything."""

import sys

import pytest

from baton.engines.vllm.core_main import CannotServe, check, parse_options
from baton.worker.settings import Settings


def test_it_takes_the_options_that_every_core_gets() -> None:
    options = parse_options(Settings(model="m", kv_memory="1MiB").core_arguments())
    assert (options.model, options.kv_memory, options.block_size) == ("m", 2**20, 32)


@pytest.mark.parametrize(
    ("name", "value"),
    [("deterministic", "on"), ("device", "cuda")],
)
def test_what_vllm_does_not_do_here_is_refused_by_name(name: str, value: object) -> None:
    options = parse_options(["--model", "m"])
    setattr(options, name, value)
    with pytest.raises(CannotServe, match=f"^{name}: not served by the engine vllm "):
        check(options)


def test_an_environment_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.version", None)
    with pytest.raises(CannotServe, match=sys.executable):
        check(parse_options(["--model", "m"]))
