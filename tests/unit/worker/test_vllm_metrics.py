"""What a worker with vLLM tells under vLLM's own names."""

from prometheus_client import REGISTRY

from baton.engine.protocol.messages import StepEvents
from baton.engine.protocol.vllm_stats import VllmStats
from baton.testing.virtual_clock import VirtualClock
from baton.worker.metrics import VllmMetrics
from tests.unit.worker.scripted_core import LOAD, ScriptedCore

NAMES = {"fp-a": "poems", "fp-b": "code"}


class Page:
    """The series of one model; counters begin where other tests have left them."""

    def __init__(self, name: str) -> None:
        info = ScriptedCore().info
        info.model_name = name
        info.num_adapter_slots = 2
        self._model = {"model_name": name, "engine": "0"}
        self._metrics = VllmMetrics(info, lambda: NAMES, VirtualClock())

    def take(self, stats: VllmStats) -> None:
        self._metrics.observe(StepEvents(1, LOAD, vllm=stats))

    def value(self, name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"vllm:{name}", self._model | labels)


def adapters_told() -> list[tuple[str, str]]:
    """The running and the waiting ones, of each series."""
    families = (each for each in REGISTRY.collect() if each.name == "vllm:lora_requests_info")
    return [
        (each.labels["running_lora_adapters"], each.labels["waiting_lora_adapters"])
        for family in families
        for each in family.samples
    ]


def test_counts_add_up_and_states_are_the_newest() -> None:
    page = Page("adds-up")
    for num_waiting in (3, 1):
        page.take(
            VllmStats(
                num_waiting=num_waiting,
                num_deferred=2,
                num_kv_fetches={"in_progress": 2},
                num_external_queries=64,
                num_external_hits=32,
                num_computed_tokens=7,
                num_cached_tokens=5,
                num_handed_over_tokens=3,
                computed_prompts=[7],
                preemptions=[0, 2],
            )
        )
    assert page.value("num_requests_waiting_by_reason", reason="capacity") == 1
    assert page.value("num_requests_waiting_by_reason", reason="deferred") == 2
    assert page.value("num_requests_kv_fetch_by_stage", stage="in_progress") == 2
    assert page.value("external_prefix_cache_queries_total") == 128
    assert page.value("external_prefix_cache_hits_total") == 64
    assert page.value("prompt_tokens_by_source_total", source="local_compute") == 14
    assert page.value("prompt_tokens_by_source_total", source="external_kv_transfer") == 6
    assert page.value("prompt_tokens_cached_total") == 16
    assert page.value("request_prefill_kv_computed_tokens_sum") == 14
    assert page.value("request_num_preemptions_count") == 4


def test_adapters_are_named_in_one_series_however_many_come_and_go() -> None:
    page = Page("adapters")
    page.take(VllmStats(running_adapters=["fp-a", "fp-b"]))
    page.take(VllmStats(running_adapters=["fp-b"], waiting_adapters=["fp-a", "gone"]))
    assert adapters_told() == [("code", "poems")]
    page.take(VllmStats())
    assert adapters_told() == [("", "")]
