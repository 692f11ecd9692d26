"""Renews the parts of the chart's schema that are the same in many places.

Every setting of every service is made from the settings classes, never typed (also by `python -m
tools.reference_tables`), so that a typo in `gateway.settings` is refused before anything starts.
Settings of the chart itself are left out. The keys that shape a pod stand at each service and pool.
"""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

from baton.worker import settings as worker_settings
from baton.worker import transports
from services.edge import settings as edge_settings
from services.envoy import settings as envoy_settings
from services.gateway import settings as gateway_settings
from services.quota import settings as quota_settings
from services.router import settings as router_settings
from services.tokenizer import settings as tokenizer_settings

# Helm's --set makes a text of a number with a point.
NUMBER = {"type": ["number", "string"], "pattern": r"^[0-9]+(\.[0-9]+)?$"}
SCHEMA = Path(__file__).parents[1] / "deploy/helm/baton/values.schema.json"
CLASSES = {
    "gateway": gateway_settings.GatewaySettings,
    "quota": quota_settings.Settings,
    "tokenizer": tokenizer_settings.Settings,
    "router": router_settings.Settings,
    "worker": worker_settings.Settings,
    "edge": edge_settings.Settings,
    "envoy": envoy_settings.Settings,
}
# Listening addresses, names, paths, peers and drain times follow from the rest of the values.
OWN = {
    "gateway": "listen callers admin_listen gateway_id quota tokenizer router secret_file aliases "
    "aliases_file outbox_dir store_username store_password_file store_sentinel_password_file "
    "safety_key_file unready_s drain_s trust_traces",
    "quota": "listen admin_listen redis_url redis_username redis_password_file "
    "redis_sentinel_password_file registry_file declared_file bootstrap_key_file secret_file "
    "prices_file usage_dir api_listen api_token_file registry_secret drain_s",
    "tokenizer": "listen admin_listen router drain_s",
    "router": "listen admin_listen router_id workers peers stop_grace_s",
    "worker": "listen admin_listen model model_name worker_id device state_dir handoff_dir "
    "load_timeout_s drain_s tensor_parallel expert_parallel",
    "edge": "listen admin_listen gateways gateway_name http_listen tls_cert_file tls_key_file "
    "trust_traces",
    "envoy": "control_plane node_id admin_listen metrics_listen max_heap_bytes unready_s drain_s",
}
# Where the keys of `$defs.pod` may stand: schemas of objects, by their path.
PODS = (
    "$defs pool", "properties pods", "properties scheduling", "properties gateway",
    "properties quota", "properties tokenizer", "properties router", "properties envoy",
    "properties edge", "properties page", "properties redis",
    "properties tracing properties jaeger",
)  # fmt: skip


def settings_schema(service: str) -> dict[str, Any]:
    """An object with a property for each setting that users may set."""
    cls = CLASSES[service]
    hints = typing.get_type_hints(cls)
    own = OWN[service].split()
    names = [field.name for field in dataclasses.fields(cls) if field.name not in own]
    properties = {name: _value_schema(hints[name]) for name in names}
    if service == "worker":
        # A misspelt one ends a worker that has been pulled, placed and started.
        name = "|".join(transports.NAMES)
        properties["transports"] = {"type": "string", "pattern": f"^({name})(,({name}))*$"}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value_schema(hint: Any) -> dict[str, Any]:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if bool in (hint, *options):
        return {"type": "boolean"}
    if int in (hint, *options):
        return {"type": "integer"}
    if float in (hint, *options):
        return NUMBER
    return {"type": "string"}


def renewed(text: str) -> str:
    """The schema with its settings and keys of pods generated again."""
    schema = json.loads(text)
    schema["$defs"]["settings"] = {service: settings_schema(service) for service in CLASSES}
    keys = {
        key: {"$ref": f"#/$defs/pod/properties/{key}"}
        for key in schema["$defs"]["pod"]["properties"]
    }
    for path in PODS:
        owner = schema
        for word in path.split():
            owner = owner[word]
        # References that are no key any more go.
        others = {
            name: value
            for name, value in owner["properties"].items()
            if not str(value.get("$ref", "")).startswith("#/$defs/pod/")
        }
        owner["properties"] = others | keys
    return json.dumps(schema, indent=2) + "\n"


def renew() -> None:
    """Write the schema."""
    SCHEMA.write_text(renewed(SCHEMA.read_text()))


if __name__ == "__main__":
    renew()
