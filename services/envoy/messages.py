"""Parts of Envoy's JSON with several users."""

from typing import Any

from baton.runtime.discovery.addresses import host_and_port

Json = dict[str, Any]


def typed(message: str, **fields: Any) -> Json:
    """An Any of the message with the full name `message`."""
    return {"@type": f"type.googleapis.com/{message}", **fields}


def address(text: str) -> Json:
    """The address of "host:port"."""
    host, port = host_and_port(text)
    return {"socket_address": {"address": host, "port_value": port}}


def endpoints(cluster: str, target: str) -> Json:
    """The only endpoint of a cluster, "host:port"; a name may stand for several addresses."""
    endpoint = {"endpoint": {"address": address(target)}}
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [endpoint]}]}
