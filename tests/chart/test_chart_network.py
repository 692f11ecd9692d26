"""Network policies allow what the services dial, and nothing else.

What they dial is read from what they are told: every address in their variables. Workers are found
by the router, so who dials them is said here, as docs/request-path.md says it.
"""

import re

import pytest

from tests.chart.rendered import (
    PROFILES,
    WORKLOADS,
    Object,
    component,
    containers,
    environment,
    named,
    of_kind,
    pod_of,
    profile,
    reaches,
    render,
    selects,
)

# Over addresses that the router tells.
TOLD_BY_THE_ROUTER = {
    ("gateway", "decode", 7000),
    ("gateway", "prefill", 7000),  # they stand in for a decode pool that is gone
    ("decode", "prefill", 7000),
    ("tokenizer", "decode", 7000),
    ("tokenizer", "prefill", 7000),
}
# Whose addresses are watched at the API server: a name here is that of the Service alone.
WATCHED = ("BATON_GATEWAY_QUOTA", "BATON_GATEWAY_TOKENIZER")
# Told to Envoy by the control plane, not by a variable.
TOLD_BY_THE_CONTROL_PLANE = {("envoy", "gateway", 8080)}
ADMIN_PORT = 9090
# Of the page, for the namespaces that it names.
PAGE_PORT = 8090
# Without a port that the page of a release could read.
UNREAD = {"redis", "jaeger", "page", "download", "test", "loadtest"}
DNS_PORT = 53
ANY_PORT = 0
# NIXL listens where it likes.
BY_NIXL = {("decode", "prefill", ANY_PORT), ("prefill", "decode", ANY_PORT)}
# host:port, or kubernetes:service:name-of-port
ADDRESS = re.compile(r"\b(baton(?:-[a-z0-9]+)+):(\w+)")
Edge = tuple[str, str, int]


def served(objects: list[Object]) -> dict[tuple[str, str], set[tuple[str, int]]]:
    """(Service, number or name of port) -> components behind it, and their container ports."""
    found: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for service in of_kind(objects, "Service"):
        for workload in of_kind(objects, "Deployment", "StatefulSet"):
            if not reaches(service, workload):
                continue
            ports = pod_of(workload)["spec"]["containers"][0]["ports"]
            targets = {port["name"]: port["containerPort"] for port in ports}
            for port in service["spec"]["ports"]:
                end = (component(workload), targets[port["targetPort"]])
                for called in (str(port["port"]), port["name"]):
                    found.setdefault((service["metadata"]["name"], called), set()).add(end)
    return found


def dialled(objects: list[Object]) -> set[Edge]:
    """From the variables: (who, whom, the whom's container port)."""
    services = served(objects)
    workloads = of_kind(objects, *WORKLOADS)
    edges = set()
    for workload in workloads:
        for name, value in environment(workload).items():
            if name == "BATON_WORKER_TRANSPORTS" and "nixl" in value:
                edges |= BY_NIXL
            if name == "BASE_URL" and value.count(":") == 1:
                value = value.replace("/v1", ":80" if value.startswith("http:") else ":443")
            for host, port in ADDRESS.findall(value):
                edges |= {(component(workload), *end) for end in services[host, port]}
    components = {component(one) for one in workloads}
    if "page" in components:
        # Found by EndpointSlices.
        edges |= {("page", read, ADMIN_PORT) for read in components - UNREAD}
    has_envoy = "envoy" in components
    return edges | TOLD_BY_THE_ROUTER | (TOLD_BY_THE_CONTROL_PLANE if has_envoy else set())


def allowed(objects: list[Object], direction: str) -> set[Edge]:
    """Edges between components that the policies of one direction allow."""
    pods = {}
    for workload in of_kind(objects, *WORKLOADS):
        pods[component(workload)] = pod_of(workload)["metadata"]["labels"]
    edges = set()
    for policy in of_kind(objects, "NetworkPolicy"):
        own = [
            name
            for name in pods
            if selects(policy["spec"]["podSelector"]["matchLabels"], pods[name])
        ]
        for rule in policy["spec"].get(direction) or ():
            for peer in rule.get("from" if direction == "ingress" else "to", ()):
                if "podSelector" not in peer:
                    continue
                wanted = peer["podSelector"]["matchLabels"]
                others = [name for name in pods if selects(wanted, pods[name])]
                for port in rule.get("ports", [{"port": ANY_PORT}]):
                    for one in own:
                        for other in others:
                            pair = (other, one) if direction == "ingress" else (one, other)
                            edges.add((*pair, port["port"]))
    return edges


@pytest.mark.parametrize("name", PROFILES)
def test_both_ends_allow_exactly_what_is_dialled(name: str) -> None:
    objects = profile(name)
    edges = dialled(objects)
    assert allowed(objects, "egress") == edges
    # The collector takes spans of all pods.
    assert {e for e in allowed(objects, "ingress") if e[1] != "jaeger"} == {
        e for e in edges if e[1] != "jaeger"
    }


@pytest.mark.parametrize("name", PROFILES)
def test_everything_else_is_refused(name: str) -> None:
    objects = profile(name)
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    deny = policies["baton-default-deny"]
    assert set(deny) == {"podSelector", "policyTypes"}
    for workload in of_kind(objects, *WORKLOADS):
        labels = pod_of(workload)["metadata"]["labels"]
        assert selects(deny["podSelector"]["matchLabels"], labels)
        spec = policies[f"baton-{component(workload)}"]
        open_ports = {
            port["port"]
            for rule in spec["ingress"] or ()
            if all("podSelector" not in peer for peer in rule.get("from", ()))
            for port in rule["ports"]
        }
        way_in = {8080} if component(workload) in ("envoy", "gateway") else set()
        if component(workload) == "page":
            way_in = {PAGE_PORT}
        assert open_ports <= {ADMIN_PORT} | way_in
        outside = {
            port["port"]
            for rule in spec["egress"] or ()
            if "to" not in rule
            for port in rule["ports"]
        }
        finds_others = component(workload) in ("gateway", "router", "edge", "page")
        watches = {443, 6443} if finds_others else set()
        hub = {443} if component(workload) == "download" else set()
        uses_redis = component(workload) in ("quota", "gateway")
        redis = {6380} if name == "external-redis" and uses_redis else set()
        collector = {4317} if name in ("h100-pools", "air-gapped") else set()
        dns = {DNS_PORT, 5353} if name == "openshift" else {DNS_PORT}
        assert outside <= dns | watches | hub | redis | collector, component(workload)


def test_only_one_component_is_the_way_in() -> None:
    for name in PROFILES:
        objects = profile(name)
        has_envoy = any(component(one) == "envoy" for one in of_kind(objects, "Deployment"))
        for policy in of_kind(objects, "NetworkPolicy"):
            open_ports = [
                port["port"]
                for rule in policy["spec"].get("ingress") or ()
                if all("podSelector" not in peer for peer in rule.get("from", ()))
                for port in rule["ports"]
            ]
            is_way_in = component(policy) == ("envoy" if has_envoy else "gateway")
            assert (8080 in open_ports) == is_way_in, (name, policy["metadata"]["name"])


def test_namespaces_narrow_who_comes_in() -> None:
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(profile("h100-pools"), "NetworkPolicy")
    }
    rules = [r for r in policies["baton-envoy"]["ingress"] if r["ports"][0]["port"] == 8080]
    ingress = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    assert [ingress] in [rule["from"] for rule in rules]
    assert all("from" in rule for rule in rules)
    (rule,) = [r for r in policies["baton-router"]["egress"] if r["ports"][0]["port"] == 443]
    assert rule["to"] == [{"ipBlock": {"cidr": "10.96.0.1/32"}}]


def egress_ports(objects: list[Object], name: str) -> set[int]:
    """To outside the release, but for names."""
    (policy,) = [p for p in of_kind(objects, "NetworkPolicy") if component(p) == name]
    rules = [rule for rule in policy["spec"]["egress"] if "to" not in rule]
    return {port["port"] for rule in rules for port in rule["ports"]} - {DNS_PORT}


def test_what_users_name_outside_is_reached_at_its_port() -> None:
    model = {"source": {"hub": {"repository": "o/m"}}, "sizeGiB": 0.5}
    values = {
        "models": {"m": model},
        "hub": {"endpoint": "http://mirror.example"},
        "redis": {"enabled": False, "url": "rediss://redis.example:6380?protocol=3"},
        "networkPolicy": {"apiServerPorts": [16443]},
    }
    objects = render(values)
    assert egress_ports(objects, "download") == {80}
    model = {"source": {"store": {"url": "s3://models/m"}}, "sizeGiB": 0.5}
    store = {"env": {"AWS_ENDPOINT_URL": "http://minio:9000"}}
    assert egress_ports(render({"models": {"m": model}, "hub": store}), "download") == {443, 9000}
    proxy = {"env": {"HTTPS_PROXY": "http://proxy:3128", "AWS_ENDPOINT_URL": {"secretKeyRef": {}}}}
    assert egress_ports(render({"models": {"m": model}, "hub": proxy}), "download") == {443, 3128}
    assert egress_ports(objects, "quota") == {6380}
    assert egress_ports(objects, "router") == {16443}


@pytest.mark.parametrize(
    ("url", "more", "ports"),
    [
        # Sentinels name servers at ports of their own.
        ("redis+sentinel://a:26380,b/mymaster/0", [], {26379, 26380, 6379}),
        ("rediss+sentinel://a/mymaster", [6390, 6391], {26379, 6390, 6391}),
        ("redis+cluster://a:7001,b:7002", [7003], {7001, 7002, 7003}),
        ("redis://redis.example/0", [], {6379}),
    ],
)
def test_quota_and_gateways_reach_all_servers_of_a_redis_of_your_own(
    url: str, more: list[int], ports: set[int]
) -> None:
    redis = {"enabled": False, "url": url}
    objects = render({"redis": redis, "networkPolicy": {"redisPorts": more}})
    assert egress_ports(objects, "quota") == ports
    assert egress_ports(objects, "gateway") == ports | {443, 6443}


def test_a_gateway_reaches_a_store_of_its_own() -> None:
    told = {"gateway": {"settings": {"store_url": "redis://store.example:6390/1"}}}
    assert egress_ports(render(told), "gateway") == {6390, 443, 6443}


def test_a_gateway_reaches_the_issuer_of_tokens_and_the_safety_service_if_there_are() -> None:
    assert egress_ports(render({}), "gateway") == {443, 6443}
    issuer = {"jwt_issuer": "https://login.example", "jwt_audience": "baton"}
    url = {"jwt_jwks_url": "https://keys.example:8443/keys", "safety_url": "http://judge/m"}
    told = {"gateway": {"settings": {**issuer, **url}}}
    assert egress_ports(render(told), "gateway") == {80, 443, 6443, 8443}


def test_workers_that_move_blocks_by_nixl_reach_each_other_at_any_port() -> None:
    objects = render({"poolDefaults": {"settings": {"transports": "nixl,grpc"}}})
    for direction in ("ingress", "egress"):
        assert {edge for edge in allowed(objects, direction) if edge[2] == ANY_PORT} == BY_NIXL


def test_every_container_port_has_a_reason() -> None:
    names = {
        port["name"]
        for workload in of_kind(profile("default"), *WORKLOADS)
        for container in containers(workload)
        for port in container.get("ports", ())
    }
    assert names == {"http", "grpc", "admin", "redis", "otlp", "ui"}


@pytest.mark.parametrize("name", ["default", "openshift"])
def test_who_is_found_by_name_has_an_address_that_stays(name: str) -> None:
    """Cluster DNS keeps its answer for 30 s, also that there is none: Envoys were ready as late,
    and both routers' new pods were found as late."""
    objects, found = profile(name), set()
    for workload in of_kind(objects, *WORKLOADS):
        for variable, value in environment(workload).items():
            if variable in WATCHED or value.startswith("kubernetes:"):
                continue
            for host, _ in ADDRESS.findall(value):
                found.add(host)
                service = named(objects, "Service", host)["spec"]
                assert service.get("clusterIP") != "None", (variable, host)
    assert found >= {"baton-edge", "baton-redis", "baton-router-0", "baton-router-1"}
