"""The page of metrics of one gateway is bounded, however many models it serves."""

import pytest
from prometheus_client import REGISTRY, generate_latest

from services.gateway import instruments
from services.gateway.instruments import Metering
from tests.unit.gateway.fakes import Fleet, simulate

# Of one model, with all stages and OpenTelemetry's names; buckets are most of them.
MOST_LINES = 500


def test_models_beyond_the_limit_share_a_label() -> None:
    metering = Metering()
    metering.most_models = 2
    assert [metering.label(name) for name in ("a", "b", "c", "a", "d")] == [
        "a", "b", Metering.OTHERS, "a", Metering.OTHERS,
    ]  # fmt: skip


def lines_of(label: str) -> list[str]:
    page = generate_latest(REGISTRY).decode().splitlines()
    return [line for line in page if f'"{label}"' in line]


def test_a_model_is_a_bounded_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    metering = Metering()
    metering.most_models = 0
    monkeypatch.setattr(instruments, "METERING", metering)
    before = lines_of("demo")
    simulate(lambda fleet: fleet.chat())
    assert 100 < len(lines_of(Metering.OTHERS)) <= MOST_LINES
    assert lines_of("demo") == before


def test_one_switch_leaves_the_conventions_metrics_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted() -> float:
        name = "gen_ai_server_request_duration_seconds_count"
        labels = {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": "baton",
            "gen_ai_request_model": "demo",
            "error_type": "",
        }
        return REGISTRY.get_sample_value(name, labels) or 0.0

    async def scenario(fleet: Fleet) -> None:
        await fleet.chat()

    before = counted()
    simulate(scenario)
    assert counted() == before + 1
    monkeypatch.setattr(instruments.METERING, "gen_ai", False)
    simulate(scenario)
    assert counted() == before + 1
