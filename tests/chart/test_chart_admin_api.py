"""The admin API of the quota service in the chart: its rights, its way in, its credential."""

from tests.chart.rendered import (
    Object,
    containers,
    named,
    of_kind,
    pod_of,
    profile,
    render,
)

ADMIN_API = {"existingSecret": "admin", "clientNamespaces": ["billing"], "secrets": 3}


def told(workload: Object) -> dict[str, str]:
    [container] = containers(workload)
    return {one["name"]: one.get("value", "") for one in container["env"]}


def test_the_admin_api_may_replace_the_secrets_of_the_registry_and_nothing_else() -> None:
    objects = render({"quota": {"adminApi": ADMIN_API}})
    names = ["baton-keys", "baton-keys-1", "baton-keys-2"]
    assert named(objects, "Role", "baton-keys")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": names,
            "verbs": ["get", "update"],
        }
    ]
    secrets = [named(objects, "Secret", name) for name in names]
    assert not any("data" in secret or "stringData" in secret for secret in secrets)
    assert all(
        secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for secret in secrets
    )
    quota = named(objects, "StatefulSet", "baton-quota")
    spec = pod_of(quota)["spec"]
    assert spec["serviceAccountName"] == "baton-keys"
    assert spec["automountServiceAccountToken"] is True
    variables = told(quota)
    assert variables["BATON_QUOTA_REGISTRY_SECRET"] == "baton-keys"
    assert variables["BATON_QUOTA_API_TOKEN_FILE"] == "/etc/baton/admin/token"
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "admin-token"]
    assert volume["secret"]["secretName"] == "admin"


def test_the_admin_api_is_reached_by_its_own_service_from_named_namespaces() -> None:
    objects = render({"quota": {"adminApi": ADMIN_API}})
    service = named(objects, "Service", "baton-admin")["spec"]
    assert service["type"] == "ClusterIP"
    assert [port["port"] for port in service["ports"]] == [8081]
    headless = named(objects, "Service", "baton-quota")["spec"]
    assert [port["port"] for port in headless["ports"]] == [7000]
    policy = named(objects, "NetworkPolicy", "baton-quota")["spec"]
    [rule] = [rule for rule in policy["ingress"] if rule["ports"][0]["port"] == 8081]
    billing = {"matchLabels": {"kubernetes.io/metadata.name": "billing"}}
    assert rule["from"] == [{"podSelector": {}}, {"namespaceSelector": billing}]


def test_without_a_credential_there_is_no_admin_api() -> None:
    objects = profile("default")
    quota = named(objects, "StatefulSet", "baton-quota")
    assert not [name for name in told(quota) if "API_" in name or name.endswith("REGISTRY_SECRET")]
    assert pod_of(quota)["spec"]["serviceAccountName"] == "baton"
    services = {one["metadata"]["name"] for one in of_kind(objects, "Service")}
    assert "baton-admin" not in services
