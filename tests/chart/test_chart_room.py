"""The room of a pool's KV cache: the chart refuses what `baton size` says is too small."""

from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

import baton.demo_model
from baton.cli.sizing.machines import ACCELERATORS, Accelerator, Machines, Traffic
from baton.cli.sizing.outline import ModelOutline
from baton.cli.sizing.plan import make_plan
from baton.cli.sizing.values import Deployment, values_yaml
from baton.cli.sizing.worker import Rates, Wanted
from baton.model.load.load import LoadOptions
from baton.worker.settings import Settings
from tests.chart.rendered import CHART, PROFILES, chart
from tests.model.load.test_outline import CONFIGS

CPU = Accelerator("cpu", 64, None, None)
TRAFFIC = Traffic(1, 200, 100)


@pytest.fixture(scope="module", params=["gpu", "ranks", "cpu"])
def outline_of(request: pytest.FixtureRequest) -> tuple[ModelOutline, str, Accelerator]:
    """A model as one worker holds it, its engine, and its device."""
    engine, num_ranks, device = {
        "gpu": ("baton", 1, ACCELERATORS["a10g"]),
        "ranks": ("vllm", 2, ACCELERATORS["a10g"]),
        "cpu": ("baton", 1, CPU),
    }[request.param]
    outline = ModelOutline(str(CONFIGS / "llama-3.1-8b.json"), engine, num_ranks, LoadOptions())
    return outline, engine, device


def refusal(values: dict[str, Any]) -> str | None:
    """The chart's words; None = it renders."""
    try:
        chart().render(values, name="baton", namespace="serving")
    except helm.HelmError as error:
        return str(error)
    return None


@pytest.mark.parametrize("is_too_much", [False, True])
@pytest.mark.parametrize("limit", ["max_batch", "max_model_len"])
def test_the_chart_refuses_the_rooms_that_baton_size_finds_too_small(
    outline_of: tuple[ModelOutline, str, Accelerator], limit: str, is_too_much: bool
) -> None:
    outline, engine, device = outline_of

    def worker_of(max_batch: int) -> Any:
        return outline.worker(device, 0.9, max_batch)

    num_tokens = worker_of(64).num_kv_tokens
    # Near the edge: values round figures up, and activations grow with the batch.
    factor = 1.04 if is_too_much else 0.96
    wanted = {
        "max_batch": Wanted(2048, int(num_tokens / 512 * factor)),
        "max_model_len": Wanted(int(num_tokens / 4 * factor), 8),
    }[limit]
    rates = Rates(device, 1000, 1000)
    plan = make_plan(worker_of, wanted, rates, TRAFFIC, Machines(device, 8 * 4))
    said = [problem for problem in plan.problems() if "tokens of KV" in problem]
    values = yaml.safe_load("\n".join(values_yaml(plan, Deployment("org/m", engine, 0.9))))
    assert bool(said) is is_too_much
    refused = refusal(values)
    assert (refused is not None) is is_too_much
    if refused:
        assert f"set settings.{limit} to" in refused


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"kv_memory": "15MiB"}, "max_model_len to 1920"),  # 7,680 tokens; 4 x 2,048 are 8,192
        ({"kv_memory": "31MiB"}, "max_batch to 31"),  # 15,872 tokens; 64 x 512 are 32,768
        ({"kv_memory": "31MiB", "max_batch": 31}, None),
        ({"kv_memory": "31MiB", "max_batch": 31, "dtype": "float32"}, "max_model_len to 1984"),
        # Sequences that are shorter than 512 tokens need no more than their length.
        ({"kv_memory": "31MiB", "max_model_len": 248}, None),
    ],
)
def test_a_room_that_is_said_is_held_to_the_same(
    settings: dict[str, Any], limit: str | None
) -> None:
    refused = refusal({"models": {"baton-demo": {"decode": {"settings": settings}}}})
    assert (refused is None) if limit is None else (refused and f"set settings.{limit}" in refused)


def test_the_charts_defaults_are_those_of_the_worker() -> None:
    settings = Settings(model="m")
    said = (settings.max_batch, settings.memory_share, settings.dtype, settings.kv_memory)
    assert said == (64, 0.8, "auto", "auto")  # as templates/models/_room.tpl has them


def test_the_demo_model_has_its_true_figures() -> None:
    (model,) = yaml.safe_load((CHART / "values.yaml").read_text())["models"].values()
    demo = str(Path(baton.demo_model.__file__).parent)
    worker = ModelOutline(demo, "baton", 1, LoadOptions()).worker(CPU, 0.8, 64)
    assert model["kvBytesPerToken"] == worker.kv_bytes_per_token
    assert model["maxModelLen"] == worker.max_model_len


def test_every_profile_says_the_figures_that_are_checked() -> None:
    models = [each for values in PROFILES.values() for each in values.get("models", {}).items()]
    for name, model in models:
        assert name == "baton-demo" or {"kvBytesPerToken", "maxModelLen"} <= set(model), name
