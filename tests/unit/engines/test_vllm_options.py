"""A core with vLLM says in one line what it cannot do, before it loads anything."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from baton.engines.vllm.core_main import VLLM_VERSION, CannotServe, check, parse_options
from baton.worker.settings import Settings


def test_it_takes_the_options_that_every_core_gets() -> None:
    options = parse_options(Settings(model="m", kv_memory="1MiB").core_arguments())
    assert (options.model, options.kv_memory, options.block_size) == ("m", 2**20, 32)


class Build:
    """The build of vLLM that is installed, as `vllm.platforms` tells of it."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def is_cpu(self) -> bool:
        return self.device_type == "cpu"

    def is_cuda(self) -> bool:
        return self.device_type == "cuda"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a build of vLLM for a device take the place of the one that is installed, if any."""

    def install(device_type: str) -> None:
        modules: dict[str, dict[str, Any]] = {"vllm": {}}
        modules["vllm.version"] = {"__version__": f"{VLLM_VERSION}+{device_type}"}
        modules["vllm.platforms"] = {"current_platform": Build(device_type)}
        for name, names in modules.items():
            module = ModuleType(name)
            vars(module).update(names)
            monkeypatch.setitem(sys.modules, name, module)

    return install


def test_what_vllm_does_not_do_here_is_refused_by_name() -> None:
    options = parse_options(["--model", "m", "--deterministic", "on"])
    with pytest.raises(CannotServe, match="deterministic: not served by the engine vllm "):
        check(options)


def test_a_build_for_gpus_starts_only_when_that_is_asked_for_and_says_what_it_is(
    installed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed("cuda")
    with pytest.raises(CannotServe, match="BATON_WORKER_UNPROVEN=on starts this one all the same"):
        check(parse_options(["--model", "m"]))
    assert not capsys.readouterr().err
    check(parse_options(["--model", "m", "--unproven", "on"]))
    (line,) = capsys.readouterr().err.splitlines()
    assert "UNPROVEN, this path has never run on one" in line


@pytest.mark.parametrize(("build", "device"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_build_for_another_device_is_named(
    installed: Callable[[str], None], build: str, device: str
) -> None:
    installed(build)
    options = parse_options(["--model", "m", "--device", device, "--unproven", "on"])
    with pytest.raises(CannotServe, match=f"device {device}: this vLLM was built for {build}"):
        check(options)


def test_no_other_build_is_started(installed: Callable[[str], None]) -> None:
    installed("xpu")
    with pytest.raises(CannotServe, match="not for xpu"):
        check(parse_options(["--model", "m", "--unproven", "on"]))


def test_a_build_for_cpus_says_nothing(
    installed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed("cpu")
    check(parse_options(["--model", "m"]))
    assert not capsys.readouterr().err


def test_an_environment_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.version", None)
    with pytest.raises(CannotServe, match=sys.executable):
        check(parse_options(["--model", "m"]))
