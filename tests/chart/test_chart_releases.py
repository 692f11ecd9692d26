"""A release's life through the real Helm library, against a stub API server: it validates nothing
and runs nothing, so this shows what Helm does with the chart, not that a cluster accepts it."""

import base64
import ssl
from pathlib import Path

import helm_python as helm
import pytest

from tests.chart.rendered import CHART, NAMESPACE, PROFILES, chart, cluster
from tests.kit.kube.kube_api import KubeApi
from tests.kit.kube.kube_store import Key, Object

ROLES = ("gateway", "quota", "tokenizer", "router", "worker", "edge", "envoy", "redis")
SECRETS = ("baton-auth", "baton-certificates", "baton-redis")


def secrets(api: KubeApi) -> dict[str, dict[str, str]]:
    items, _ = api.store.all_of("", "secrets", NAMESPACE)
    return {item["metadata"]["name"]: item["data"] for item in items}


def replicas(api: KubeApi, name: str) -> int:
    deployment = api.store.get(Key("apps", "deployments", NAMESPACE, name))
    return int(deployment["spec"]["replicas"])


def finished(created: Object) -> Object:
    """What a kubelet makes of a pod that ends well."""
    if created["kind"] == "Pod":
        return {**created, "status": {"phase": "Succeeded"}}
    return created


def test_keys_survive_upgrades_and_rollbacks_and_an_uninstall() -> None:
    with cluster() as (api, config):
        assert config.install(chart(), "baton", {})["status"] == "deployed"
        first = secrets(api)
        assert set(first) == set(SECRETS)
        config.upgrade(chart(), "baton", {"gateway": {"replicas": 5}})
        assert (replicas(api, "baton-gateway"), secrets(api)) == (5, first)
        config.rollback("baton")
        assert (replicas(api, "baton-gateway"), secrets(api)) == (2, first)
        config.uninstall("baton")
        left = secrets(api)
        assert left == {"baton-auth": first["baton-auth"]}, "keys are kept, nothing else is"
        for group, plural in (("apps", "deployments"), ("apps", "statefulsets"), ("", "services")):
            assert api.store.all_of(group, plural, NAMESPACE)[0] == []
        config.install(chart(), "baton", {})
        assert secrets(api)["baton-auth"] == first["baton-auth"]


def test_generated_keys_are_of_the_form_that_the_services_read(tmp_path: Path) -> None:
    with cluster() as (api, config):
        config.install(chart(), "baton", {})
        made = {
            name: {key: base64.b64decode(value) for key, value in data.items()}
            for name, data in secrets(api).items()
        }
    auth = made["baton-auth"]
    assert auth["api-key"].startswith(b"bt-")
    assert len(auth["api-key"]) == 46
    assert len(bytes.fromhex(auth["server-secret"].decode())) == 32
    assert made["baton-redis"].keys() == {"password"}
    assert len(made["baton-redis"]["password"]) == 40
    for name, content in made["baton-certificates"].items():
        (tmp_path / name).write_bytes(content)
    assert set(made["baton-certificates"]) == {"ca.crt"} | {
        f"{service}.{kind}" for service in ROLES for kind in ("crt", "key")
    }
    for service in ROLES:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(tmp_path / f"{service}.crt", tmp_path / f"{service}.key")
        context.load_verify_locations(tmp_path / "ca.crt")


def test_certificates_of_an_older_chart_are_refused_with_what_to_do() -> None:
    key = Key("", "secrets", NAMESPACE, "baton-certificates")
    with cluster() as (api, config):
        config.install(chart(), "baton", {})
        made = api.store.get(key)["data"]
        old = {name: text for name, text in made.items() if not name.startswith("redis")}
        api.store.change(key, lambda secret: {**secret, "data": old})
        with pytest.raises(helm.HelmError, match="delete secret baton-certificates"):
            config.upgrade(chart(), "baton", {})
        api.store.delete(key)
        config.upgrade(chart(), "baton", {})
        assert api.store.get(key)["data"].keys() == made.keys()


def test_every_upgrade_between_profiles_is_taken_by_helm() -> None:
    with cluster() as (api, config):
        config.install(chart(), "baton", PROFILES["minimal"])
        for name in ("default", "two-models", "gateway-api", "external-redis", "h100-pools"):
            config.upgrade(chart(), "baton", {**PROFILES[name], "quota": {"replicas": 2}})
        assert api.store.all_of("gateway.networking.k8s.io", "httproutes")[0] == []
        assert len(api.store.all_of("batch", "jobs")[0]) == 2
        assert len(config.history("baton")) == 6


def test_volumes_that_came_later_are_refused_with_the_way_to_get_them() -> None:
    volume = {"redis": {"persistence": {"size": "8Gi"}}}
    with cluster() as (api, config):
        config.install(chart(), "baton", {"redis": {"persistence": {"size": ""}}})
        with pytest.raises(helm.HelmError, match="delete statefulset baton-redis --cascade=orphan"):
            config.upgrade(chart(), "baton", volume)
        api.store.delete(Key("apps", "statefulsets", NAMESPACE, "baton-redis"))
        config.upgrade(chart(), "baton", volume)
        config.upgrade(chart(), "baton", {**volume, "logLevel": "DEBUG"})
        with pytest.raises(helm.HelmError, match="--cascade=orphan"):
            config.upgrade(chart(), "baton", {"redis": {"persistence": {"size": "9Gi"}}})


def test_pods_of_a_scaler_stay_as_many_as_they_are() -> None:
    requests = {"cpu": "500m", "memory": "192Mi"}
    scaled = {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": requests}}}
    with cluster() as (api, config):
        config.install(chart(), "baton", {"gateway": {"replicas": 5}})
        config.upgrade(chart(), "baton", scaled)
        assert replicas(api, "baton-gateway") == 5
        key = Key("apps", "deployments", NAMESPACE, "baton-gateway")
        api.store.change(key, lambda old: {**old, "spec": {**old["spec"], "replicas": 7}})
        config.upgrade(chart(), "baton", {**scaled, "logLevel": "DEBUG"})
        assert replicas(api, "baton-gateway") == 7


def test_helm_test_runs_the_script_that_streams_a_completion() -> None:
    with cluster(react=finished) as (api, config):
        config.install(chart(), "baton", {})
        config.test("baton", timeout=200)
        pod = api.store.get(Key("", "pods", NAMESPACE, "baton-test"))
        script = api.store.get(Key("", "configmaps", NAMESPACE, "baton-test"))["data"]
        (container,) = pod["spec"]["containers"]
        assert container["command"] == ["python", "/test/stream_completion.py"]
        compile(script["stream_completion.py"], "stream_completion.py", "exec")


def test_notes_tell_how_to_read_the_key_ask_and_look() -> None:
    notes = chart().render({}, name="baton", namespace="llm")["baton/templates/NOTES.txt"]
    for words in (
        "make images REGISTRY=HOST/TEAM PUSH=1",
        "kubectl -n llm get secret baton-auth",
        "port-forward svc/baton-envoy 8080:80",
        "curl http://127.0.0.1:8080/v1/chat/completions",
        "port-forward svc/baton-jaeger 16686:16686",
        "its new pod stays Pending",
    ):
        assert words in notes
    assert "serves baton-demo.\n" in notes


def test_notes_tell_what_to_do_where_images_cannot_be_pulled() -> None:
    told = chart().render({"image": {"registry": "host/team"}}, name="baton", namespace="llm")
    notes = told["baton/templates/NOTES.txt"]
    assert "At ImagePullBackOff, host/team does not have the images: make images" in notes
    assert "`helm test` ends with DeadlineExceeded" in notes


def test_new_version_keeps_downloads_and_their_claims() -> None:
    with cluster() as (api, config):
        config.install(chart(), "baton", PROFILES["gpu-node"])
        claims, jobs = (
            {item["metadata"]["name"] for item in api.store.all_of(group, plural)[0]}
            for group, plural in (("", "persistentvolumeclaims"), ("batch", "jobs"))
        )
        config.upgrade(chart(), "baton", {**PROFILES["gpu-node"], "image": {"tag": "0.2.0"}})
        new_claims, _ = api.store.all_of("", "persistentvolumeclaims")
        new_jobs, _ = api.store.all_of("batch", "jobs")
    assert {item["metadata"]["name"] for item in new_claims} == claims
    assert not {item["metadata"]["name"] for item in new_jobs} & jobs, "a Job never changes"


def test_what_was_downloaded_outlives_the_release_and_is_found_by_the_next() -> None:
    with cluster() as (api, config):
        config.install(chart(), "baton", PROFILES["gpu-node"])
        claims, _ = api.store.all_of("", "persistentvolumeclaims")
        config.uninstall("baton")
        kept, _ = api.store.all_of("", "persistentvolumeclaims")
        assert [one["metadata"]["uid"] for one in kept] == [
            one["metadata"]["uid"] for one in claims
        ]
        config.install(chart(), "baton", PROFILES["gpu-node"])
        config.uninstall("baton")
        thrifty = {**PROFILES["gpu-node"], "hub": {"keep": False}}
        config.install(chart(), "baton", thrifty)
        config.uninstall("baton")
        assert api.store.all_of("", "persistentvolumeclaims")[0] == []


def test_package_has_what_the_folder_has_but_the_examples(tmp_path: Path) -> None:
    archive = helm.package(CHART, destination=tmp_path)
    with helm.Chart.load(archive) as packed:
        assert len(packed.templates) == len(chart().templates)
        names = {file["name"] for file in packed.files}
    assert "files/alerts.yaml" in names
    assert not [name for name in names if name.startswith("ci/")]
