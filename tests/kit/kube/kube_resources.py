"""Which kinds a stub Kubernetes API server serves, and what its discovery and OpenAPI say of them.

Only what clients need to find a resource and to learn that its patches take `fieldValidation`,
`fieldManager`, `force` and `dryRun`; there are no schemas.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KUBERNETES_VERSION = "v1.34.0"
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind: `group` is empty for the core."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of its API version."""
        return f"apis/{self.api_version}" if self.group else f"api/{self.version}"


CORE = (
    Resource("", "v1", "namespaces", "Namespace", is_namespaced=False),
    Resource("", "v1", "pods", "Pod"),
    Resource("", "v1", "services", "Service"),
    Resource("", "v1", "endpoints", "Endpoints"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "nodes", "Node", is_namespaced=False),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "statefulsets", "StatefulSet"),
    Resource("apps", "v1", "daemonsets", "DaemonSet"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("batch", "v1", "cronjobs", "CronJob"),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("networking.k8s.io", "v1", "ingresses", "Ingress"),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
)
# What common operators add.
CUSTOM = (
    Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute"),
    Resource("cert-manager.io", "v1", "certificates", "Certificate"),
    Resource("cert-manager.io", "v1", "issuers", "Issuer"),
    Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor"),
    Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    Resource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule"),
    Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
)


def version_document() -> dict[str, str]:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    return {"major": major, "minor": minor, "gitVersion": KUBERNETES_VERSION}


def group_list(resources: Iterable[Resource]) -> dict[str, Any]:
    """What `/apis` answers."""
    versions = sorted({(one.group, one.version) for one in resources if one.group})
    groups = [
        {
            "name": group,
            "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
            "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
        }
        for group, version in versions
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def resource_list(api_version: str, resources: Iterable[Resource]) -> dict[str, Any]:
    """What the root of one API version answers."""
    entries = [
        {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "kind": resource.kind,
            "namespaced": resource.is_namespaced,
            "verbs": VERBS,
        }
        for resource in resources
    ]
    body = {"kind": "APIResourceList", "groupVersion": api_version, "resources": entries}
    return {"apiVersion": "v1", **body}


def openapi_index(resources: Iterable[Resource]) -> dict[str, Any]:
    """What `/openapi/v3` answers."""
    roots = sorted({resource.root for resource in resources})
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash=0"} for root in roots}}


def openapi_document(resources: Iterable[Resource]) -> dict[str, Any]:
    """The OpenAPI of one API version: for each kind a patch and its parameters."""
    parameters = [
        {"name": name, "in": "query"}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    paths = {}
    for resource in resources:
        scope = "namespaces/{namespace}/" if resource.is_namespaced else ""
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        operation = {"x-kubernetes-group-version-kind": kind, "parameters": parameters}
        operation["responses"] = {"200": {"description": "OK"}}
        paths[f"/{resource.root}/{scope}{resource.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "Kubernetes", "version": KUBERNETES_VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths}
