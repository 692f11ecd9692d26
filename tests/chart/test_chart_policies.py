"""Rules that every rendered object keeps, in every profile."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.rendered import (
    PROFILES,
    SERVERS,
    WORKLOADS,
    Object,
    chart,
    cluster,
    component,
    containers,
    environment,
    named,
    of_component,
    of_kind,
    of_kind_if_any,
    pod_of,
    profile,
    reaches,
    render,
    selects,
)

SECRET_WORDS = re.compile(r"password|passwd|secret|token(?!i|s)|api[-_]?key", re.IGNORECASE)
GRACE_REST_S = 10
# Services of the pods of several workloads, by the ends of their names.
POOLED = {
    "baton-workers": ("-prefill", "-decode"),
    "baton-prefill": ("-prefill",),
    "baton-decode": ("-decode",),
}


@pytest.mark.parametrize("name", PROFILES)
def test_pod_is_restricted(name: str) -> None:
    """The Pod Security Standard `restricted`, and a read-only root besides: not beside a GPU, whose
    driver is put in by hooks. RDMA needs a capability more."""
    for workload in of_kind(profile(name), *WORKLOADS):
        spec = pod_of(workload)["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        kinds = {kind for volume in spec["volumes"] for kind in set(volume) - {"name"}}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"}
        for container in containers(workload):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            limits = container["resources"]["limits"]
            has_gpu = any(name.startswith("nvidia.com/") for name in limits)
            assert security["readOnlyRootFilesystem"] is not has_gpu
            added = {"add": ["IPC_LOCK"]} if "rdma/ib" in limits else {}
            assert security["capabilities"] == {"drop": ["ALL"], **added}
            assert all("hostPort" not in port for port in container.get("ports", ()))


@pytest.mark.parametrize("name", PROFILES)
def test_container_has_resources_and_a_fixed_image(name: str) -> None:
    for workload in of_kind(profile(name), *WORKLOADS):
        for container in containers(workload):
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"])
            assert "memory" in resources["limits"]
            tag = container["image"].rpartition("/")[2]
            assert ":" in tag
            assert not tag.endswith(":latest")
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = workload["spec"].get("volumeClaimTemplates", ())
            volumes = [
                *pod_of(workload)["spec"]["volumes"],
                *(claim["metadata"] for claim in claims),
            ]
            assert mounts <= {volume["name"] for volume in volumes}
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))


@pytest.mark.parametrize("name", PROFILES)
def test_no_secret_is_in_variables_or_arguments(name: str) -> None:
    num_variables = 0
    for workload in of_kind(profile(name), *WORKLOADS):
        for container in containers(workload):
            for entry in container.get("env", ()):
                assert "secretKeyRef" not in json.dumps(entry), "secrets are files"
                is_path = str(entry.get("value", "/")).startswith("/")
                assert is_path or not SECRET_WORDS.search(entry["name"]), entry["name"]
                num_variables += 1
            words = " ".join([*container.get("command", ()), *container.get("args", ())])
            assert not SECRET_WORDS.search(words), words
    assert num_variables > 0


@pytest.mark.parametrize("name", PROFILES)
def test_generated_secrets_are_in_secrets_only(name: str) -> None:
    objects = profile(name)
    others = json.dumps([one for one in objects if one["kind"] != "Secret"])
    secrets = of_kind_if_any(objects, "Secret")
    assert bool(secrets) == (name != "external-redis")  # whose users give all of them
    for secret in secrets:
        for value in secret["data"].values():
            assert value not in others


@pytest.mark.parametrize("name", PROFILES)
def test_server_has_all_probes_on_ports_that_it_has(name: str) -> None:
    for workload in of_kind(profile(name), *SERVERS):
        (container,) = pod_of(workload)["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            settings = container[probe]
            target = settings.get("httpGet") or settings["tcpSocket"]
            assert target["port"] in ports
        # A loop that is stuck says so after 5 s (baton/runtime/admin.py).
        assert container["livenessProbe"]["timeoutSeconds"] > 5


@pytest.mark.parametrize("name", PROFILES)
def test_grace_period_is_enough_for_pre_stop_and_drain(name: str) -> None:
    draining = set()
    for workload in of_kind(profile(name), *SERVERS):
        spec = pod_of(workload)["spec"]
        (container,) = spec["containers"]
        pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        drains = [
            float(value)
            for name, value in environment(workload).items()
            if re.search(r"_(DRAIN_S|UNREADY_S|STOP_GRACE_S)$", name)
        ]
        assert spec["terminationGracePeriodSeconds"] >= pre_stop + sum(drains) + GRACE_REST_S - 1
        draining |= {component(workload)} if drains else set()
    assert {"gateway", "prefill", "decode"} <= draining


@pytest.mark.parametrize("name", PROFILES)
def test_worker_may_load_for_as_long_as_its_startup_probe_waits(name: str) -> None:
    for workload in of_component(profile(name), "prefill", "decode"):
        load_s = environment(workload)["BATON_WORKER_LOAD_TIMEOUT_S"]
        probe = pod_of(workload)["spec"]["containers"][0]["startupProbe"]
        budget_s = probe["periodSeconds"] * probe["failureThreshold"]
        assert float(load_s) + 30 <= budget_s < workload["spec"]["progressDeadlineSeconds"]


def test_startup_budget_grows_with_the_model() -> None:
    small = named(profile("default"), "Deployment", "baton-baton-demo-decode")
    large = named(profile("h100-pools"), "Deployment", "baton-qwen-qwen3-32b-decode")
    small_s, large_s = (
        float(environment(one)["BATON_WORKER_LOAD_TIMEOUT_S"]) for one in (small, large)
    )
    assert small_s < 150
    assert large_s > 600


@pytest.mark.parametrize("name", PROFILES)
def test_selectors_match_the_pods_they_mean(name: str) -> None:
    objects = profile(name)
    pods = {
        workload["metadata"]["name"]: pod_of(workload)["metadata"]["labels"]
        for workload in of_kind(objects, "Deployment", "StatefulSet")
    }
    for workload in of_kind(objects, "Deployment", "StatefulSet"):
        own = workload["metadata"]["name"]
        selector = workload["spec"]["selector"]["matchLabels"]
        assert [pod for pod in pods if selects(selector, pods[pod])] == [own]
    for service in of_kind(objects, "Service"):
        found = [
            one["metadata"]["name"]
            for one in of_kind(objects, "Deployment", "StatefulSet")
            if reaches(service, one)
        ]
        own = service["metadata"]["name"]
        if own in POOLED:
            assert found == [pod for pod in pods if pod.endswith(POOLED[own])]
        else:
            assert found == [re.sub(r"^(baton-router)-\d+$", r"\1", own)]
        workload = next(
            one
            for one in of_kind(objects, "Deployment", "StatefulSet")
            if one["metadata"]["name"] == found[0]
        )
        ports = {port["name"] for port in next(containers_of(workload))["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def containers_of(workload: Object) -> Iterator[Object]:
    yield from pod_of(workload)["spec"]["containers"]


@pytest.mark.parametrize("name", PROFILES)
def test_who_may_be_evicted_leaves_somebody(name: str) -> None:
    objects = profile(name)
    budgets = {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind_if_any(objects, "PodDisruptionBudget")
    }
    for workload in of_kind(objects, "Deployment", "StatefulSet"):
        replicas = workload["spec"].get("replicas")
        has_budget = workload["metadata"]["name"] in budgets
        assert has_budget == (replicas is None or replicas > 1), workload["metadata"]["name"]
        if has_budget:
            budget = budgets[workload["metadata"]["name"]]
            is_large = name in ("h100-pools", "h100-rdma") and component(workload) in (
                "prefill",
                "decode",
            )
            assert budget["maxUnavailable"] == ("25%" if is_large else 1)
            assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
            labels = pod_of(workload)["metadata"]["labels"]
            assert selects(budget["selector"]["matchLabels"], labels)


@pytest.mark.parametrize("name", PROFILES)
def test_scalers_own_the_replicas_of_what_they_scale(name: str) -> None:
    objects = profile(name)
    scaled = {
        scaler["spec"]["scaleTargetRef"]["name"]
        for scaler in of_kind_if_any(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }
    unset = {
        workload["metadata"]["name"]
        for workload in of_kind(objects, "Deployment", "StatefulSet")
        if "replicas" not in workload["spec"]
    }
    assert scaled == unset
    for scaler in of_kind_if_any(objects, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["minReplicas"] <= scaler["spec"]["maxReplicas"]


def test_pools_of_h100s_grow_by_what_they_lack() -> None:
    scaler = named(profile("h100-rdma"), "HorizontalPodAutoscaler", "baton-llama-8b-decode")
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "baton_kv_percent"
    assert metric["external"]["target"]["value"] == "70"
    objects = profile("h100-pools")
    for role, threshold, series in (
        ("prefill", "1.5", "baton_router_queued_prefill_seconds"),
        ("decode", "70", "baton_kv_blocks_promised"),
    ):
        scaler = named(objects, "ScaledObject", f"baton-qwen-qwen3-32b-{role}")
        (trigger,) = scaler["spec"]["triggers"]
        assert trigger["metadata"]["threshold"] == threshold
        assert series in trigger["metadata"]["query"]
        assert "authenticationRef" not in trigger


def test_keda_shows_a_prometheus_that_asks_for_one_its_token() -> None:
    monitoring = {**PROFILES["h100-pools"]["monitoring"], "kedaAuthentication": "prometheus-token"}
    objects = render({**PROFILES["h100-pools"], "monitoring": monitoring})
    for scaler in of_kind(objects, "ScaledObject"):
        (trigger,) = scaler["spec"]["triggers"]
        assert trigger["authenticationRef"] == {"name": "prometheus-token"}
        assert trigger["metadata"]["authModes"] == "bearer"


@pytest.mark.parametrize("name", PROFILES)
def test_only_those_who_find_others_may_ask_the_api_server_and_only_for_endpoints(
    name: str,
) -> None:
    objects = profile(name)
    (role,) = of_kind(objects, "Role")
    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    for workload in of_kind(objects, *WORKLOADS):
        spec = pod_of(workload)["spec"]
        watches = component(workload) in ("gateway", "router", "edge", "page")
        assert spec["automountServiceAccountToken"] is watches
        assert spec["serviceAccountName"] == ("baton-watcher" if watches else "baton")


@pytest.mark.parametrize("name", PROFILES)
def test_a_hub_model_is_downloaded_once_for_each_storage_it_is_read_from(name: str) -> None:
    objects = profile(name)
    jobs = {
        job["metadata"]["name"]: pod_of(job)["spec"]["volumes"]
        for job in of_kind_if_any(objects, "Job")
        if component(job) == "download"
    }
    claims = {one["metadata"]["name"] for one in of_kind_if_any(objects, "PersistentVolumeClaim")}
    assert len(jobs) == len(claims)
    written = {
        volume["persistentVolumeClaim"]["claimName"]
        for volumes in jobs.values()
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }
    assert written == claims
    read = {
        volume["persistentVolumeClaim"]["claimName"]
        for workload in of_kind(objects, "Deployment")
        for volume in pod_of(workload)["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims <= read
    assert len(claims) == {"gpu-node": 1, "h100-pools": 2, "qwen3-32b": 1}.get(name, 0)


def test_nothing_gives_up_before_the_download_does() -> None:
    objects = profile("gpu-node")
    [job] = of_kind(objects, "Job")
    deadline_s = job["spec"]["activeDeadlineSeconds"]
    assert deadline_s > 600
    for workload in of_component(objects, "prefill", "decode"):
        assert workload["spec"]["progressDeadlineSeconds"] > deadline_s + 300


def test_a_download_goes_through_the_proxy_that_it_is_given() -> None:
    env = {
        "HTTPS_PROXY": "http://proxy:3128",
        "X": {"secretKeyRef": {"name": "proxy", "key": "password"}},
    }
    [job] = of_kind(render({**PROFILES["gpu-node"], "hub": {"env": env}}), "Job")
    assert environment(job)["HTTPS_PROXY"] == "http://proxy:3128"
    [variable] = [one for one in pod_of(job)["spec"]["containers"][0]["env"] if one["name"] == "X"]
    assert variable["valueFrom"] == env["X"]


def test_a_model_of_a_store_is_downloaded_and_waited_for() -> None:
    url, secret = "s3://models/llama-8b", {"secretKeyRef": {"name": "my-store", "key": "secret"}}
    model = {"source": {"store": {"url": url}}, "sizeGiB": 0.01}
    store = {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_SECRET_ACCESS_KEY": secret}
    objects = render({"models": {"baton-demo": None, "m": model}, "hub": {"env": store}})
    [job] = of_kind(objects, "Job")
    [claim] = [one["metadata"]["name"] for one in of_kind(objects, "PersistentVolumeClaim")]
    [container] = pod_of(job)["spec"]["containers"]
    assert container["command"] == ["python", "-m", "baton.worker.download", url, "/models/m"]
    assert "args" not in container
    assert environment(job)["AWS_ENDPOINT_URL"] == "http://minio:9000"
    told = {one["name"]: one.get("valueFrom") for one in container["env"]}
    assert told["AWS_SECRET_ACCESS_KEY"] == secret
    for workload in of_component(objects, "prefill", "decode"):
        spec = pod_of(workload)["spec"]
        [volume] = [one for one in spec["volumes"] if one["name"] == "model-m"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert f"the download of {url}" in json.dumps(spec["initContainers"])


def test_weights_may_lie_on_the_nodes() -> None:
    source = {"hostPath": {"path": "/data/m"}}
    objects = render({"models": {"baton-demo": None, "m": {"source": source, "sizeGiB": 0.01}}})
    for workload in of_component(objects, "prefill", "decode"):
        spec = pod_of(workload)["spec"]
        [volume] = [one for one in spec["volumes"] if one["name"] == "model-m"]
        assert volume["hostPath"] == {"path": "/data/m", "type": "Directory"}
        [mount] = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "model-m"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/models/m", True)


@pytest.mark.parametrize("mount", [False, True], ids=["copied", "mounted"])
def test_a_model_is_copied_from_an_image_or_mounted_from_it(mount: bool) -> None:
    image = {"reference": "host/llama-8b:1", "path": "/model", "mount": mount}
    objects = render({"models": {"baton-demo": {"source": {"demo": None, "image": image}}}})
    for worker in of_component(objects, "decode", "prefill"):
        if worker["kind"] != "Deployment":
            continue
        spec = pod_of(worker)["spec"]
        (volume,) = [one for one in spec["volumes"] if one["name"] == "model-baton-demo"]
        requests = spec["containers"][0]["resources"]["requests"]
        folder = environment(worker)["BATON_WORKER_MODEL"]
        if mount:
            assert volume["image"]["reference"] == "host/llama-8b:1"
            assert (folder, "initContainers" in spec) == ("/models/baton-demo/model", False)
            assert "ephemeral-storage" not in requests
        else:
            assert (folder, spec["initContainers"][0]["image"]) == (
                "/models/baton-demo",
                "host/llama-8b:1",
            )
            # On the node's disk, which would else be shared out twice.
            assert requests["ephemeral-storage"] == volume["emptyDir"]["sizeLimit"] == "2Gi"


def test_workers_see_models_read_only_and_wait_for_the_download() -> None:
    for workload in of_component(profile("gpu-node"), "prefill", "decode"):
        spec = pod_of(workload)["spec"]
        assert ".downloaded" in json.dumps(spec["initContainers"])
        for container in containers(workload):
            (mount,) = [
                m for m in container["volumeMounts"] if m["mountPath"].startswith("/models/")
            ]
            assert mount["readOnly"] is True


def test_gpu_workers_are_placed_on_gpu_nodes() -> None:
    for workload in of_component(profile("h100-pools"), "prefill", "decode"):
        spec = pod_of(workload)["spec"]
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["nodeSelector"] == {"cloud.example.com/pool": f"h100-{component(workload)}"}
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        (shm,) = [volume for volume in spec["volumes"] if volume["name"] == "shm"]
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
        assert workload["spec"]["strategy"]["rollingUpdate"] == {
            "maxSurge": 0,
            "maxUnavailable": "25%",
        }


def cores(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def mebibytes(text: str) -> float:
    number, unit = float(text[:-2]), text[-2:]
    return number * {"Mi": 1, "Gi": 1024}[unit]


@pytest.mark.parametrize(("name", "num_cores"), [("default", 2), ("trial", 1.05)])
def test_a_release_asks_for_no_more_than_a_small_cluster_has(name: str, num_cores: float) -> None:
    """The trial leaves half of a node of 2 cores to the cluster's own pods and to a rollout."""
    asked = [
        (container["resources"]["requests"], workload["spec"]["replicas"])
        for workload in of_kind(profile(name), *SERVERS)
        for container in containers_of(workload)
    ]
    assert sum(cores(one["cpu"]) * number for one, number in asked) <= num_cores
    assert sum(mebibytes(one["memory"]) * number for one, number in asked) <= 4.5 * 1024


@pytest.mark.parametrize(
    "name", ["gpu-node", "h100-pools", "h100-rdma", "mig", "qwen3-32b", "llama-70b"]
)
def test_beside_gpus_the_token_path_keeps_its_part_of_a_busy_node(name: str) -> None:
    for part, num_cores in (("gateway", 1), ("tokenizer", 0.5), ("router", 0.5)):
        for workload in of_component(profile(name), part):
            server = pod_of(workload)["spec"]["containers"][0]
            assert cores(server["resources"]["requests"]["cpu"]) >= num_cores, part


def test_the_trial_differs_from_the_default_release_in_its_requests_alone() -> None:
    """With the same replicas, so that a fault is survived there, too."""
    for workload in of_kind(profile("trial"), *SERVERS):
        default = named(profile("default"), workload["kind"], workload["metadata"]["name"])
        assert workload["spec"]["replicas"] == default["spec"]["replicas"]
        for small, large in zip(containers_of(workload), containers_of(default), strict=True):
            assert small["resources"]["limits"] == large["resources"]["limits"]
            assert small.get("env") == large.get("env")


def test_a_download_runs_where_the_pool_runs_that_reads_it() -> None:
    for job in of_kind(profile("h100-pools"), "Job"):
        spec = pod_of(job)["spec"]
        role = "decode" if "decode-zone" in job["metadata"]["name"] else "prefill"
        assert spec["nodeSelector"] == {"cloud.example.com/pool": f"h100-{role}"}
        assert spec["tolerations"]


def test_all_pods_but_the_workers_are_placed_by_one_setting() -> None:
    values = {
        "scheduling": {
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
            "priorityClassName": "serving",
        }
    }
    for workload in of_kind(render(values), *WORKLOADS):
        spec = pod_of(workload)["spec"]
        placed = [name in spec for name in ("nodeSelector", "tolerations", "priorityClassName")]
        assert placed == [component(workload) not in ("prefill", "decode")] * 3


def test_a_load_balancer_shows_envoy_who_the_clients_are() -> None:
    service = named(profile("h100-pools"), "Service", "baton-envoy")["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    service = named(profile("default"), "Service", "baton-envoy")["spec"]
    assert "externalTrafficPolicy" not in service


def test_dashboards_and_rules_are_the_files() -> None:
    objects = profile("h100-pools")
    boards = [
        one for one in of_kind(objects, "ConfigMap") if "dashboard" in one["metadata"]["name"]
    ]
    assert len(boards) >= 4
    for board in boards:
        (text,) = board["data"].values()
        assert json.loads(text)["panels"]
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    (rule,) = of_kind(objects, "PrometheusRule")
    text = yaml.safe_dump(rule)
    assert "BatonNoReadyWorkers" in text
    assert "{{ $labels.role }}" in text


def test_aliases_share_by_weight() -> None:
    aliases = named(profile("two-models"), "ConfigMap", "baton-aliases")["data"]["aliases"]
    assert aliases.split() == ["any=baton-demo:10", "any=qwen3-0.6b:90", "qwen=qwen3-0.6b:100"]


def test_names_are_short_enough_under_any_release() -> None:
    release = "a-release-with-a-name-as-long-as-helm-allows-it-00000"
    assert len(release) == 53
    with cluster() as (api, config):
        config.install(chart(), release, PROFILES["h100-pools"])
        names = [
            (key.plural, key.name) for key in api.store.all_keys() if key.plural != "namespaces"
        ]
    # Of Jobs and StatefulSets' pods labels are made, of Services DNS names.
    for plural, name in names:
        assert len(name) <= (63 if plural in ("jobs", "services", "statefulsets") else 100), name
        assert name.startswith("a-release-with")


def test_release_of_another_name_calls_its_services_by_it() -> None:
    with cluster() as (api, config):
        config.install(chart(), "llm", {})
        names = {key.name for key in api.store.all_keys() if key.plural == "services"}
        workloads, _ = api.store.all_of("apps", "deployments")
    assert "llm-baton-gateway" in names
    texts = json.dumps([environment(workload) for workload in workloads])
    for host in re.findall(r"[a-z0-9-]+(?=:(?:7000|8080|18000|4317)\b)", texts):
        assert host in names | {"0.0.0.0", "0"}, host
