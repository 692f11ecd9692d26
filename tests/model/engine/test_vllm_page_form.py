"""The form of a block of vLLM's names all that two workers must agree on."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from baton.engines.vllm.model_facts import kv_spec_of, only_group, page_order_of
from baton.engines.vllm.ranks.cache_views import CacheForm, form_of


def caches(**changed: Any) -> SimpleNamespace:
    """vLLM's KVCacheConfig of a model with two layers, with a rank's two of four heads."""
    spec = {
        "block_size": 32,
        "num_kv_heads": 2,
        "head_size": 64,
        "head_size_v": 64,
        "dtype": torch.bfloat16,
        "num_head_slots": None,
        "state_content_bytes": None,
        "page_size_padded": None,
    }
    group = SimpleNamespace(
        layer_names=["a", "b"], kv_cache_spec=SimpleNamespace(**(spec | changed))
    )
    return SimpleNamespace(kv_cache_groups=[group], num_blocks=10)


def form(**changed: Any) -> CacheForm:
    _, spec = only_group(caches(**changed))
    return form_of(spec, 10)


def order_on(isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The order of pages on a CPU with such instructions."""
    module = ModuleType("cpu_attn")
    module._get_attn_isa = lambda dtype, block_size, head_size, cache_dtype: isa  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.cpu_attn", module)
    return page_order_of(caches(), "auto", is_cpu=True)


def test_workers_whose_kernels_keep_blocks_in_other_orders_hand_over_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = [order_on("amx", monkeypatch), order_on("vec", monkeypatch)]
    orders.append(page_order_of(caches(), "auto", is_cpu=False))
    amx, vec, gpu = (kv_spec_of(caches(), 4, "vllm 0.32.0", order) for order in orders)
    assert amx.difference(amx) is None
    assert "cpu-amx" in str(amx.difference(vec))
    assert "HNC" in str(amx.difference(gpu))


def test_a_form_that_a_backend_packs_or_pads_is_refused() -> None:
    assert form() == CacheForm(10)
    assert form(num_head_slots=2, state_content_bytes=256) == CacheForm(10, True)
    for packed in (
        {"num_head_slots": 4, "state_content_bytes": 72},  # NVFP4 of FlashInfer
        {"state_content_bytes": 136},  # scales for each token and head
        {"page_size_padded": 2**20},
    ):
        with pytest.raises(ValueError, match="packs or pads its KV cache"):
            form(**packed)


def test_a_cache_of_other_numbers_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a KV cache of uint8 is not handed over"):
        kv_spec_of(caches(dtype=torch.uint8), 4, "vllm 0.32.0", "HNC")
