"""A real Jaeger shows what a request was, through its own API: kinds, names, attributes, links."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from baton.localstack.ports import LOOPBACK, free_ports
from baton.runtime import telemetry
from baton.wire.failures import NoRoom, Unavailable
from tests import needs
from tests.unit.gateway.fakes import Fleet, RecordingSink, simulate

pytestmark = needs.jaeger
# It refuses a search for more traces than it keeps; without a limit one asks for 100.
MAX_TRACES = 50
PATIENCE_S = 60.0
CLIENT = f"00-{'a' * 32}-{'b' * 16}-01"


def config(otlp: int, query: int, grpc: int) -> dict[str, Any]:
    """Jaeger with traces in memory, bounded as the chart bounds them."""
    storage = {"backends": {"some_storage": {"memory": {"max_traces": MAX_TRACES}}}}
    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "pipelines": {
                "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}
            },
            "telemetry": {"metrics": {"level": "none"}},
        },
        "extensions": {
            "jaeger_storage": storage,
            "jaeger_query": {
                "storage": {"traces": "some_storage"},
                "http": {"endpoint": f"{LOOPBACK}:{query}"},
                "grpc": {"endpoint": f"{LOOPBACK}:{grpc}"},
            },
        },
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"{LOOPBACK}:{otlp}"}}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "some_storage"}},
    }


class Jaeger(NamedTuple):
    otlp: str
    api: str

    def get(self, path: str) -> Any:
        """The list that its API answers (null where it is empty); None without an answer."""
        try:
            with urllib.request.urlopen(f"{self.api}{path}", timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"] or []
        except (urllib.error.URLError, ConnectionError):
            return None

    def until(self, path: str, num: int) -> Any:
        """The list that it answers, once it has `num` entries."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self.get(path)
            if found is not None and len(found) >= num:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{path}: {self.get(path)}")


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    folder: Path = tmp_path_factory.mktemp("jaeger")
    otlp, query, grpc = free_ports(3)
    # JSON is YAML.
    (folder / "config.yaml").write_text(json.dumps(config(otlp, query, grpc)))
    with (folder / "output").open("wb") as output:
        program = subprocess.Popen(
            [str(needs.JAEGER), "--config", str(folder / "config.yaml")],
            stdout=output,
            stderr=output,
        )
    found = Jaeger(f"http://{LOOPBACK}:{otlp}", f"http://{LOOPBACK}:{query}/api")
    try:
        found.until("/services", 0)
        yield found
    finally:
        program.terminate()
        program.wait()


@pytest.fixture
def sending(jaeger: Jaeger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jaeger]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.otlp)
    telemetry.setup("gateway")
    yield jaeger
    telemetry.shutdown()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    telemetry.setup("gateway")


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def references(span: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    return [
        (each["traceID"], each["spanID"]) for each in span["references"] if each["refType"] == kind
    ]


def test_the_story_of_a_request_is_in_its_trace(sending: Jaeger) -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.workers["w1"].refusal = NoRoom("full")
        incoming = fleet.incoming(
            "/v1/chat/completions",
            {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": True},
            links=((CLIENT, "client"),),
        )
        await fleet.gateway.pipeline.run(incoming, RecordingSink())

    simulate(scenario)
    telemetry.shutdown()
    (trace,) = sending.until(f"/traces?service=baton-gateway&limit={MAX_TRACES}", 1)
    (process,) = trace["processes"].values()
    assert process["serviceName"] == "baton-gateway"
    assert {"service.namespace", "service.version", "service.instance.id"} <= {
        tag["key"] for tag in process["tags"]
    }
    spans = {span["operationName"]: span for span in trace["spans"]}
    kinds = {name: tags(span).get("span.kind", "internal") for name, span in spans.items()}
    calls = {"auth", "tokenize", "reserve", "pick", "attempt", "settle"}
    assert {name for name, kind in kinds.items() if kind == "client"} == calls
    assert {name for name, kind in kinds.items() if kind == "server"} == {"chat demo"}
    root = tags(spans["chat demo"])
    for name, value in {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "demo",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "baton.num_attempts": 1,
    }.items():
        assert root[name] == value, name
    assert root["gen_ai.response.time_to_first_chunk"] > 0
    # A refusal for room is an error nowhere.
    assert not any("error" in tags(span) for span in trace["spans"])
    assert references(spans["chat demo"], "FOLLOWS_FROM") == [("a" * 32, "b" * 16)]
    attempt = spans["attempt"]
    here = trace["traceID"], attempt["spanID"]
    assert references(spans["wait for room"], "FOLLOWS_FROM") == [here]
    assert references(attempt, "CHILD_OF") == [(here[0], spans["chat demo"]["spanID"])]


def test_a_failed_request_is_there_although_it_was_not_sampled(
    sending: Jaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    telemetry.setup("failing")

    async def scenario(fleet: Fleet) -> None:
        for worker in fleet.workers.values():
            worker.refusal = Unavailable("gone", reason="worker_lost")
        with pytest.raises(Unavailable):
            await fleet.chat()

    simulate(scenario)
    telemetry.shutdown()
    (trace,) = sending.until(f"/traces?service=baton-failing&limit={MAX_TRACES}", 1)
    (span,) = trace["spans"]
    told = tags(span)
    assert (told["baton.kept"], told["error"], told["error.type"]) == (
        "failed",
        True,
        "worker_lost",
    )


def test_jaeger_keeps_no_more_traces_than_it_may_and_still_answers(sending: Jaeger) -> None:
    telemetry.setup("many")
    sent = [telemetry.start_span("work", request_id=f"r{n}") for n in range(4 * MAX_TRACES)]
    for span in sent:
        span.end()
    telemetry.shutdown()
    found = sending.until(f"/traces?service=baton-many&limit={MAX_TRACES}", MAX_TRACES)
    assert len(found) == MAX_TRACES
    assert sum(sending.get(f"/traces/{span.trace_id}") is not None for span in sent) == MAX_TRACES
