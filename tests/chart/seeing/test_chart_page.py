"""The page of a release in the chart: what it is told, who reaches it, whose token opens it."""

import re
import secrets
from functools import cache
from typing import Any

import helm_python as helm
import pytest

from baton.runtime import environment as settings_of
from services.page.settings import PREFIX, Settings
from tests.chart.rendered import (
    Object,
    chart,
    cluster,
    component,
    environment,
    named,
    of_component,
    of_kind,
    pod_of,
    profile,
    render,
    selects,
)
from tests.kit.kube.kube_store import Key

SERVICES = ("gateway", "quota", "tokenizer", "router", "prefill", "decode", "edge", "envoy")
WITH_ADMIN_API = {"page": {"enabled": True}, "quota": {"adminApi": {"existingSecret": "operators"}}}
COLLECTOR = {
    "jaeger": {"enabled": False}, "endpoint": "https://otlp.example:4317",
    "caSecret": "their-ca", "headersSecret": "their-headers",
}  # fmt: skip


@cache
def rendered(kind: str) -> list[Object]:
    more: dict[str, Any] = {
        "plain": {"page": {"enabled": True}},
        "admin": WITH_ADMIN_API,
        "collector": {"page": {"enabled": True, "tlsSecret": "page-tls"}, "tracing": COLLECTOR},
    }
    return render(more[kind])


def page_of(objects: list[Object]) -> Object:
    return named(objects, "Deployment", "baton-page")


def settings(objects: list[Object]) -> Settings:
    told = {k: v for k, v in environment(page_of(objects)).items() if k.startswith(PREFIX)}
    return settings_of.parse(Settings, PREFIX, told)


def secrets_of(workload: Object) -> dict[str, str]:
    """The Secrets of a pod, by the folder that they are mounted at."""
    spec = pod_of(workload)["spec"]
    by_volume = {
        each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each
    }
    mounts = spec["containers"][0]["volumeMounts"]
    return {m["mountPath"]: by_volume[m["name"]] for m in mounts if m["name"] in by_volume}


def test_there_is_no_page_by_default() -> None:
    assert not [one for one in profile("default") if "page" in one["metadata"]["name"]]


def test_the_page_is_one_pod_with_the_gateways_image_that_may_only_watch_slices() -> None:
    objects = rendered("plain")
    workload = page_of(objects)
    assert workload["spec"]["replicas"] == 1
    (container,) = pod_of(workload)["spec"]["containers"]
    (gateway,) = of_component(objects, "gateway")
    assert container["image"] == pod_of(gateway)["spec"]["containers"][0]["image"]
    assert container["command"] == ["python", "-m", "services.page"]
    assert pod_of(workload)["spec"]["serviceAccountName"] == "baton-watcher"
    (rule,) = named(objects, "Role", "baton-watcher")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["get", "list", "watch"])
    # It has none of the services' certificates, nor any Secret but its token's.
    assert secrets_of(workload) == {"/etc/baton/page": "baton-page"}
    assert named(objects, "Service", "baton-page")["spec"]["type"] == "ClusterIP"


def test_its_settings_are_the_release_and_its_disk_is_bounded() -> None:
    told = settings(rendered("plain"))
    assert (told.release, told.services_port, told.quota_api) == ("baton", 9090, "")
    volumes = pod_of(page_of(rendered("plain")))["spec"]["volumes"]
    (disk,) = [each["emptyDir"]["sizeLimit"] for each in volumes if each["name"] == "spans"]
    assert disk == "1Gi"
    assert told.spans_bytes < 0.8 * 2**30
    assert told.spans_file.parent.as_posix() == "/var/lib/baton/spans"


def test_services_send_spans_to_the_page_which_sends_them_on_as_the_collector_asks() -> None:
    objects = rendered("collector")
    for workload in of_component(objects, *SERVICES):
        told = environment(workload)
        assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://baton-page:4317"
        # What is secret goes over TLS to the collector, not in the clear to the page.
        assert not {"OTEL_EXPORTER_OTLP_CERTIFICATE", "BATON_OTLP_HEADERS_FILE"} & set(told)
        assert not {"their-ca", "their-headers"} & set(secrets_of(workload).values())
    told = environment(page_of(objects))
    assert settings(objects).forward_to == "https://otlp.example:4317"
    mounted = secrets_of(page_of(objects))
    assert mounted[told["BATON_OTLP_HEADERS_FILE"].rpartition("/")[0]] == "their-headers"
    assert mounted[told["OTEL_EXPORTER_OTLP_CERTIFICATE"].rpartition("/")[0]] == "their-ca"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in told
    assert settings(rendered("plain")).forward_to == "http://baton-jaeger:4317"


def test_with_the_admin_api_its_token_opens_the_page_and_asks_quota() -> None:
    objects = rendered("admin")
    told = settings(objects)
    assert told.quota_api == "baton-admin:8081"
    assert told.quota_token_file is not None
    mounted = secrets_of(page_of(objects))
    assert mounted[str(told.token_file.parent)] == "operators"
    assert mounted[str(told.quota_token_file.parent)] == "operators"
    assert not [one for one in of_kind(objects, "Secret") if component(one) == "page"]


def test_a_token_of_its_own_is_made_once_and_kept() -> None:
    with cluster() as (api, config):
        key = Key("", "secrets", "default", "baton-page")
        config.install(chart(), "baton", {"page": {"enabled": True}})
        made = api.store.find(key)
        assert made is not None
        assert len(made["data"]["token"]) > 40
        config.upgrade(chart(), "baton", {"page": {"enabled": True}})
        again = api.store.find(key)
        assert again is not None
        assert again["data"]["token"] == made["data"]["token"]
        manifest = config.get_all("baton")
    assert re.search(r"get secret baton-page -o jsonpath=.* \| base64 -d", str(manifest))


def test_slices_tell_prefill_and_decode_pods_apart() -> None:
    objects = rendered("plain")
    for role in ("prefill", "decode"):
        service = named(objects, "Service", f"baton-{role}")
        assert component(service) == role
        assert service["spec"]["publishNotReadyAddresses"]
        (pool,) = of_component(objects, role)
        assert selects(service["spec"]["selector"], pod_of(pool)["metadata"]["labels"])


def test_nobody_reaches_the_page_but_spans_and_the_namespaces_that_are_named() -> None:
    def open_to(objects: list[Object]) -> list[tuple[int, set[str]]]:
        rules = named(objects, "NetworkPolicy", "baton-page")["spec"]["ingress"]
        return [
            (rule["ports"][0]["port"], {next(iter(peer)) for peer in rule.get("from", ())})
            for rule in rules
        ]

    assert {port for port, _ in open_to(rendered("plain"))} == {4317, 9090}
    named_too = dict(open_to(profile("h100-pools")))
    assert named_too[8090] == {"namespaceSelector"}
    assert named_too[4317] == {"podSelector"}


def test_a_service_with_an_account_of_its_own_may_watch_there() -> None:
    own = {name: {"serviceAccountName": f"my-{name}"} for name in ("gateway", "router", "page")}
    own["page"]["enabled"] = True  # type: ignore[assignment]
    subjects = named(render(own), "RoleBinding", "baton-watcher")["subjects"]
    names = {subject["name"] for subject in subjects}
    assert names == {"my-gateway", "my-router", "my-page", "baton-watcher"}


@pytest.mark.parametrize("wrong", [{"replicas": 2}, {"token": secrets.token_hex()}, {"spans": "9"}])
def test_what_the_page_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        render({"page": {"enabled": True, **wrong}})
