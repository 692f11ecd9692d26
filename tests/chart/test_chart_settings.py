"""What the chart tells the services is what they understand, and the schema names every setting."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from baton.keys.homes import MAX_SECRETS
from baton.runtime import environment, peer_tls
from baton.worker import settings as worker_settings
from services.edge import settings as edge_settings
from services.envoy import settings as envoy_settings
from services.gateway import settings as gateway_settings
from services.page import settings as page_settings
from services.quota import settings as quota_settings
from services.quota.prices import parse_prices
from services.router import settings as router_settings
from services.tokenizer import settings as tokenizer_settings
from tests.chart.rendered import (
    CHART,
    POD_NAME,
    PROFILES,
    ROOT,
    SERVERS,
    WORKLOADS,
    Object,
    component,
    containers,
    named,
    of_component,
    of_kind,
    pod_of,
    profile,
    render,
)
from tests.chart.rendered import (
    environment as variables,
)
from tools import chart_settings

WORKER = (worker_settings.ENVIRONMENT_PREFIX, worker_settings.Settings)
CLASSES: dict[str, tuple[str, Any]] = {
    "gateway": (gateway_settings.PREFIX, gateway_settings.GatewaySettings),
    "quota": (quota_settings.PREFIX, quota_settings.Settings),
    "tokenizer": (tokenizer_settings.PREFIX, tokenizer_settings.Settings),
    "router": (router_settings.ENVIRONMENT_PREFIX, router_settings.Settings),
    "prefill": WORKER,
    "decode": WORKER,
    "edge": (edge_settings.PREFIX, edge_settings.Settings),
    "envoy": (envoy_settings.PREFIX, envoy_settings.Settings),
    "page": (page_settings.PREFIX, page_settings.Settings),
}
# Read by libraries, by the process root and by the test's script.
OTHERS = {
    "BATON_LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_TRACES_SAMPLER_ARG", "BATON_OTLP_HEADERS_FILE", "OTEL_RESOURCE_ATTRIBUTES",
    "K8S_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_NODE_NAME", "GOMEMLIMIT",
    "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN_PATH", "HOME", "XDG_CACHE_HOME",
    "UCX_NET_DEVICES", "BASE_URL", "MODEL", "KEY_FILE", "JAEGER_LISTEN_HOST",
}  # fmt: skip


RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
GPU_DECODE = "baton-meta-llama-llama-3-1-8b-instru-decode"


def told(workload: Object) -> dict[str, str]:
    """The variables of its container; those that come from the pod have some value."""
    entries = {entry["name"]: "x" for c in containers(workload) for entry in c.get("env", ())}
    return {**entries, **variables(workload)}


@pytest.mark.parametrize("name", PROFILES)
def test_each_service_reads_its_variables_and_knows_all_of_them(name: str) -> None:
    seen = set()
    for workload in of_kind(profile(name), *WORKLOADS):
        env = told(workload)
        known = set(OTHERS)
        for prefix, cls in [
            (peer_tls.PREFIX, peer_tls.Settings),
            *filter(None, [CLASSES.get(component(workload))]),
        ]:
            environment.parse(cls, prefix, env)
            known |= {variable for variable in env if variable.startswith(prefix)}
            seen.add(component(workload))
        assert set(env) <= known, workload["metadata"]["name"]
    assert {"gateway", "quota", "tokenizer", "router", "prefill", "decode"} <= seen


def test_whoever_sends_spans_says_which_pod_it_is_and_whom_it_trusts() -> None:
    senders = set()
    for workload in of_kind(profile("default"), *WORKLOADS):
        env = told(workload)
        if "OTEL_EXPORTER_OTLP_ENDPOINT" not in env:
            continue
        senders.add(component(workload))
        (container,) = containers(workload)
        names = [entry["name"] for entry in container["env"]]
        # Kubernetes fills in only what stands before.
        told_by = [names.index(name) for name in re.findall(r"\$\((\w+)\)", env[RESOURCE])]
        assert len(told_by) == 5
        assert max(told_by) < names.index(RESOURCE)
        assert f"k8s.container.name={container['name']}" in env[RESOURCE]
    assert {"gateway", "quota", "tokenizer", "router", "prefill", "decode"} <= senders


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("envoy", [False, True])
def test_the_border_of_traces_is_the_outermost_of_our_proxies(trusts: bool, envoy: bool) -> None:
    values = {"tracing": {"trustClients": trusts}, "envoy": {"enabled": envoy}}
    of = {component(each): told(each) for each in of_kind(render(values), *SERVERS)}
    trusted = of["gateway"]["BATON_GATEWAY_TRUST_TRACES"]
    assert trusted == str(envoy or trusts).lower()
    if envoy:
        assert of["edge"]["BATON_EDGE_TRUST_TRACES"] == str(trusts).lower()


def test_whoever_sends_spans_finds_the_headers_in_a_file() -> None:
    senders = 0
    for workload in of_kind(profile("air-gapped"), *WORKLOADS):
        env = variables(workload)
        if "OTEL_EXPORTER_OTLP_ENDPOINT" not in env:
            continue
        senders += 1
        folder = str(Path(env["BATON_OTLP_HEADERS_FILE"]).parent)
        pod = pod_of(workload)["spec"]
        mounts = pod["containers"][0]["volumeMounts"]
        (mount,) = (mount for mount in mounts if mount["mountPath"] == folder)
        (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
        assert volume["secret"]["secretName"] == "collector-token"
    assert senders >= len({"gateway", "quota", "tokenizer", "router", "edge", "envoy"})


def places(objects: list[Object], name: str) -> set[str]:
    """Where the workloads of a component get their zone and region from."""
    return {
        entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
        for workload in of_component(objects, name)
        for container in containers(workload)
        for entry in container.get("env", ())
        if entry["name"].endswith(("_ZONE", "_REGION"))
    }


@pytest.mark.parametrize("name", ["gateway", "router", "prefill", "decode"])
def test_what_has_a_zone_reads_it_from_the_label_of_its_pod(name: str) -> None:
    label = "metadata.labels['topology.kubernetes.io/zone']"
    assert places(profile("default"), name) == {label}


def test_a_place_that_the_values_name_is_not_overwritten() -> None:
    envoy = {"enabled": True, "settings": {"zone": "z1", "region": "r1"}}
    own = {"settings": {"zone": "z1"}}
    objects = render({"gateway": own, "router": own, "envoy": envoy})
    assert places(objects, "gateway") == places(objects, "router") == {"z1"}
    assert places(objects, "envoy") == {"z1", "r1"}


@pytest.mark.parametrize("name", PROFILES)
def test_every_started_module_is_there(name: str) -> None:
    modules = set()
    for workload in of_kind(profile(name), *WORKLOADS):
        for container in containers(workload):
            words = [*container.get("command", ()), *container.get("args", ())]
            if words[:2] == ["python", "-m"]:
                assert importlib.util.find_spec(words[2]), words
                modules.add(words[2])
    assert {"services.gateway", "services.prefill_worker", "services.decode_worker"} <= modules


def test_schema_names_the_settings_of_today() -> None:
    text = chart_settings.SCHEMA.read_text()
    assert text == chart_settings.renewed(text), "run: python -m tools.reference_tables"


def test_settings_that_the_chart_makes_itself_are_none_that_users_give() -> None:
    for service, names in chart_settings.OWN.items():
        fields = chart_settings.CLASSES[service].__dataclass_fields__
        assert set(names.split()) <= set(fields), service


def test_values_are_for_newcomers() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 110
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    uncommented = [key for key in default if not _has_comment_near(lines, key)]
    assert uncommented == []


def _has_comment_near(lines: list[str], key: str) -> bool:
    """A comment above its line, or below it where its own keys begin."""
    (number,) = [n for n, line in enumerate(lines) if line.startswith(f"{key}:")]
    block = [lines[number - 1], lines[number]]
    for line in lines[number + 1 :]:
        if line and not line.startswith((" ", "#")):
            break
        block.append(line)
    return any("#" in line for line in block)


def test_demo_model_is_where_the_images_have_it() -> None:
    folder = Path(chart_settings.__file__).parents[1] / "baton/demo_model"
    size_gib = sum(file.stat().st_size for file in folder.iterdir()) / 2**30
    (model,) = yaml.safe_load((CHART / "values.yaml").read_text())["models"].values()
    assert size_gib <= model["sizeGiB"]
    for workload in of_component(profile("default"), "prefill", "decode"):
        assert variables(workload)["BATON_WORKER_MODEL"] == "/app/baton/demo_model"


def test_transports_of_a_pool_replace_the_usual_one() -> None:
    pool = {"settings": {"transports": "nixl,grpc"}}
    model = {"source": {"demo": True}, "sizeGiB": 0.01, "decode": pool}
    objects = render({"models": {"m": model}})
    decode = variables(named(objects, "Deployment", "baton-m-decode"))
    assert decode["BATON_WORKER_TRANSPORTS"] == "nixl,grpc"


def test_numbers_are_written_as_services_read_them() -> None:
    values = {
        "gateway": {"settings": {"max_body_bytes": 16_777_216}},
        "router": {"settings": {"itl_weight": 0.5, "max_index_hashes": 10_000_000}},
    }
    objects = render(values)
    gateway = variables(named(objects, "Deployment", "baton-gateway"))
    router = variables(named(objects, "StatefulSet", "baton-router"))
    assert gateway["BATON_GATEWAY_MAX_BODY_BYTES"] == "16777216"
    assert router["BATON_ROUTER_MAX_INDEX_HASHES"] == "10000000"
    assert router["BATON_ROUTER_ITL_WEIGHT"] == "0.5"


def test_a_number_may_be_the_text_that_set_on_the_command_line_makes_of_it() -> None:
    large = {"source": {"volume": {"claim": "large"}}, "sizeGiB": "0.02"}
    values = {
        "models": {"baton-demo": {"sizeGiB": "0.01", "decode": {"replicas": 3}}, "large": large},
        "router": {"settings": {"max_wait_s": "1.5"}},
        "tracing": {"sampleRatio": "0.05"},
    }
    objects = render(values)
    (router,) = of_component(objects, "router")
    assert variables(router)["BATON_ROUTER_MAX_WAIT_S"] == "1.5"
    assert variables(router)["OTEL_TRACES_SAMPLER_ARG"] == "0.05"
    # One model is changed by its name, and another one is added; the rest of the first stays.
    pools = {one["metadata"]["name"]: one for one in of_component(objects, "prefill", "decode")}
    assert pools["baton-baton-demo-decode"]["spec"]["replicas"] == 3
    assert "baton-large-decode" in pools
    aliases = named(objects, "ConfigMap", "baton-aliases")["data"]["aliases"]
    assert "gpt-4o=baton-demo:100" in aliases.split()


def test_gateway_reads_the_key_of_the_safety_service_from_its_secret() -> None:
    settings = {"safety_url": "http://judge.safety/v1/moderations"}
    objects = render({"gateway": {"settings": settings, "safetySecret": "judge"}})
    gateway = named(objects, "Deployment", "baton-gateway")
    path = Path(variables(gateway)["BATON_GATEWAY_SAFETY_KEY_FILE"])
    (container,) = containers(gateway)
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent)]
    (volume,) = [v for v in pod_of(gateway)["spec"]["volumes"] if v["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "judge"
    assert volume["secret"]["items"] == [{"key": "key", "path": path.name}]


def test_worker_on_cpus_has_as_many_threads_as_cores() -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    pool = {"prefill": {"resources": resources}, "decode": {"settings": {"threads": 3}}}
    objects = render({"models": {"m": {"source": {"demo": True}, "sizeGiB": 1, **pool}}})
    told = [variables(named(objects, "Deployment", f"baton-m-{r}")) for r in ("prefill", "decode")]
    assert [env["BATON_WORKER_THREADS"] for env in told] == ["2", "3"]
    gpu = variables(named(profile("gpu-node"), "Deployment", GPU_DECODE))
    assert "BATON_WORKER_THREADS" not in gpu


@pytest.mark.parametrize(
    ("name", "num_proxies"), [("default", "1"), ("minimal", "0"), ("gateway-api", "1")]
)
def test_gateway_knows_how_many_proxies_are_before_it(name: str, num_proxies: str) -> None:
    gateway = named(profile(name), "Deployment", "baton-gateway")
    assert variables(gateway)["BATON_GATEWAY_NUM_PROXIES"] == num_proxies


@pytest.mark.parametrize(
    ("has_envoy", "service", "port", "num_proxies"),
    [(True, "baton-envoy", 80, "2"), (False, "baton-gateway", 8080, "1")],
)
def test_a_route_leads_to_envoy_or_past_it_to_the_gateways(
    has_envoy: bool, service: str, port: int, num_proxies: str
) -> None:
    route = {"enabled": True, "parentRefs": [{"name": "public"}]}
    objects = render({"httpRoute": route, "envoy": {"enabled": has_envoy}})
    (found,) = of_kind(objects, "HTTPRoute")
    (rule,) = found["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service, "port": port}]
    assert port in [each["port"] for each in named(objects, "Service", service)["spec"]["ports"]]
    # The clients' addresses are those that the Gateway in front saw.
    (gateway,) = of_component(objects, "gateway")
    assert variables(gateway)["BATON_GATEWAY_NUM_PROXIES"] == num_proxies
    if has_envoy:
        (edge,) = of_component(objects, "edge")
        assert variables(edge)["BATON_EDGE_TRUSTED_PROXIES"] == "1"


def test_keys_and_budgets_outlive_the_pods_of_redis_and_quota() -> None:
    objects = render({"quota": {"replicas": 3}})
    quota = named(objects, "StatefulSet", "baton-quota")
    assert told(quota)["BATON_QUOTA_NUM_ARCHIVES"] == "3"
    [keys] = [volume for volume in pod_of(quota)["spec"]["volumes"] if volume["name"] == "keys"]
    sources = [source["secret"] for source in keys["projected"]["sources"]]
    assert all(source["optional"] for source in sources)
    assert [(source["name"], source["items"][0]["path"]) for source in sources] == [
        ("baton-keys", "registry.jsonl"),
        *((f"baton-keys-{number}", f"registry-{number}.jsonl") for number in range(1, MAX_SECRETS)),
    ]
    [mount] = [
        mount
        for each in containers(quota)
        for mount in each["volumeMounts"]
        if mount["name"] == "keys"
    ]
    assert told(quota)["BATON_QUOTA_REGISTRY_FILE"] == f"{mount['mountPath']}/registry.jsonl"
    for workload in (quota, named(objects, "StatefulSet", "baton-redis")):
        assert workload["spec"]["volumeClaimTemplates"]
    assert not [
        each for each in of_kind(objects, "Secret") if each["metadata"]["name"] == "baton-keys"
    ]


def test_keys_that_are_declared_come_from_a_secret_of_yours() -> None:
    objects = render({"auth": {"keysSecret": "customers"}})
    (quota,) = of_component(objects, "quota")
    path = Path(variables(quota)["BATON_QUOTA_DECLARED_FILE"])
    spec = pod_of(quota)["spec"]
    (mount,) = [
        each
        for each in spec["containers"][0]["volumeMounts"]
        if each["mountPath"] == str(path.parent)
    ]
    # A mount of one file would never change.
    assert "subPath" not in mount
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "customers"
    # Without it the pod waits: a Secret that is missing must not end every key.
    assert "optional" not in volume["secret"]
    assert volume["secret"]["items"] == [{"key": path.name, "path": path.name}]


def test_usage_records_that_wait_outlive_the_pod_of_their_gateway() -> None:
    gateway = {"outbox": {"size": "2Gi"}, "resources": {"requests": {"cpu": "1"}}}
    scaled = {**gateway, "autoscaling": {"enabled": True}}
    objects = render({"gateway": scaled})
    (found,) = of_component(objects, "gateway")
    (claim,) = found["spec"]["volumeClaimTemplates"]
    (container,) = pod_of(found)["spec"]["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "outbox"]
    assert found["kind"] == "StatefulSet"
    assert claim["metadata"]["name"] == "outbox"
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert mount["mountPath"] == variables(found)["BATON_GATEWAY_OUTBOX_DIR"]
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"


def test_prices_are_a_file_that_quota_reads() -> None:
    prices = {
        "version": "2026-11",
        "currency": "USD",
        "models": {"large": {"prompt": "2.5", "cached": "1.25", "output": "10"}},
    }
    objects = render({"quota": {"prices": prices}})
    quota = named(objects, "StatefulSet", "baton-quota")
    path = variables(quota)["BATON_QUOTA_PRICES_FILE"]
    text = named(objects, "ConfigMap", "baton-prices")["data"][Path(path).name]
    assert parse_prices(text, path).text_of("large") == "2500000 1250000 10000000 2026-11"
    assert "BATON_QUOTA_PRICES_FILE" not in variables(
        named(profile("default"), "StatefulSet", "baton-quota")
    )


def test_prices_that_are_numbers_and_not_texts_are_refused() -> None:
    models = {"large": {"prompt": 2.5, "output": "10"}}
    with pytest.raises(helm.HelmError, match="prompt"):
        render({"quota": {"prices": {"version": "1", "currency": "USD", "models": models}}})


def test_the_price_list_of_compose_is_one_that_quota_takes() -> None:
    file = ROOT / "deploy/compose/prices.json"
    assert parse_prices(file.read_text(), str(file)).text_of("baton-demo")


def test_each_router_has_a_service_that_leads_to_its_pod_alone_before_it_is_ready() -> None:
    for number in range(2):
        name = f"baton-router-{number}"
        spec = named(profile("default"), "Service", name)["spec"]
        assert spec["selector"][POD_NAME] == name
        assert spec["publishNotReadyAddresses"]


def test_jaeger_keeps_fewer_traces_than_its_memory_holds() -> None:
    (jaeger,) = of_component(profile("default"), "jaeger")
    (container,) = containers(jaeger)
    assert container["resources"]["limits"]["memory"] == "512Mi"
    (option,) = container["args"]
    assert option.endswith(".memory.max_traces=8192")


def test_the_folder_of_a_claim_is_one_that_its_readers_open_themselves() -> None:
    """A folder that is missing then has a line in the logs; as a `subPath` it would have none, in
    a pod that waits for ever."""
    objects = profile("two-models")
    folder = "/models/qwen3-0-6b/Qwen3-0.6B"
    decode = named(objects, "Deployment", "baton-qwen3-0-6b-decode")
    assert variables(decode)["BATON_WORKER_MODEL"] == folder
    mounts = [mount for each in containers(decode) for mount in each["volumeMounts"]]
    assert [mount["mountPath"] for mount in mounts].count("/models/qwen3-0-6b") == 1
    assert not any("subPath" in mount for mount in mounts)


@pytest.mark.parametrize("name", ["two-models", "gpu-node", "air-gapped", "h100-pools"])
def test_tokenizers_mount_no_model_and_ask_the_routers_that_gateways_ask(name: str) -> None:
    """So a change of models restarts none, and their start is not that of a model's size."""
    (tokenizer,) = of_component(profile(name), "tokenizer")
    (gateway,) = of_component(profile(name), "gateway")
    spec = pod_of(tokenizer)["spec"]
    assert not [volume for volume in spec["volumes"] if volume["name"].startswith("model-")]
    assert not spec.get("initContainers")
    own = variables(tokenizer)
    assert own["BATON_TOKENIZER_ROUTER"] == variables(gateway)["BATON_GATEWAY_ROUTER"]
    assert "BATON_TOKENIZER_MODELS" not in own
    startup = spec["containers"][0]["startupProbe"]
    assert startup["httpGet"]["path"] == "/livez"


def test_workers_of_a_model_see_its_folder_of_adapters() -> None:
    model = {
        "source": {"volume": {"claim": "models", "path": "large"}},
        "sizeGiB": 1,
        "lora": {"claim": "adapters", "path": "of-large"},
    }
    pools = {"settings": {"engine": "vllm", "adapter_slots": 3}}
    objects = render({"models": {"baton-demo": None, "large": model}, "poolDefaults": pools})
    for workload in of_component(objects, "prefill", "decode"):
        own = variables(workload)
        assert own["BATON_WORKER_ADAPTERS"] == "/adapters/of-large"
        assert (own["BATON_WORKER_ENGINE"], own["BATON_WORKER_ADAPTER_SLOTS"]) == ("vllm", "3")
        pod = pod_of(workload)["spec"]
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "adapters"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/adapters", True)
        (volume,) = [each for each in pod["volumes"] if each["name"] == "adapters"]
        assert volume["persistentVolumeClaim"] == {"claimName": "adapters"}
