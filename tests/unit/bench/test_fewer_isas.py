"""Engines that are held to fewer instruction sets than the CPU has: all of them, or none."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.contenders import BATON, Contender, Parity, offline_contender
from bench.report import render

HELD = {
    "BATON_CPU_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


def contenders(parity: Parity) -> list[Contender]:
    names = (BATON, "vllm", "transformers", "transformers-continuous")
    return [offline_contender(name, Path("model"), parity) for name in names]


def test_all_engines_are_held_to_the_same_and_no_other_is_touched() -> None:
    for contender in contenders(Parity(isa="avx2")):
        assert contender.environment.items() >= HELD.items()
    for contender in contenders(Parity()):
        assert not contender.environment.keys() & {*HELD, "PYTHONPATH"}


@pytest.mark.parametrize(("isa", "has_avx512"), [("avx2", False), ("avx512", True)])
def test_what_vllm_asks_torch_for_is_hidden(
    monkeypatch: pytest.MonkeyPatch, isa: str, has_avx512: bool
) -> None:
    (vllm,) = (each for each in contenders(Parity(isa=isa)) if each.name == "vllm")
    names = ("_is_amx_tile_supported", "_is_avx512_supported", "_is_avx512_bf16_supported")
    cpu = SimpleNamespace(**dict.fromkeys(names, lambda: True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cpu=cpu))
    monkeypatch.setenv("BATON_CPU_ISA", isa)
    runpy.run_path(f"{vllm.environment['PYTHONPATH']}/sitecustomize.py")
    assert [getattr(cpu, name)() for name in names] == [False, has_avx512, has_avx512]


def test_a_report_says_what_engines_were_held_to() -> None:
    machine = {"cpu": "C", "num_cpus": 2, "cpu_features": ["amx_bf16"], "memory_bytes": 2**30}
    record = {"part": "environment", "versions": {}, "python": "3.12", **machine}
    assert "every engine was held to avx2" in render([record | {"isa": "avx2"}])
    assert "held to" not in render([record])
