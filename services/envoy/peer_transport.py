"""Mutual TLS between an Envoy and the control plane, with the files and the peer name that every
service has (baton/runtime/peer_tls.py)."""

import json
from pathlib import Path

from baton.runtime import peer_tls
from services.envoy.messages import Json, typed

_TLS = "envoy.extensions.transport_sockets.tls.v3."
_OWN, _PEERS = "own", "peers"


def peer_transport(peer: peer_tls.Settings, secrets_folder: Path | None) -> Json | None:
    """The TLS transport of the connection to the control plane; None without certificates.

    With `secrets_folder` (see `secret_files`) Envoy takes renewed files as they come, without it at
    its next start.
    """
    if peer.cert_file is None:
        return None
    if secrets_folder is None:
        context: Json = {
            "tls_certificates": [_certificate(peer)], "validation_context": _validation(peer)
        }  # fmt: skip
    else:
        context = {
            "tls_certificate_sds_secret_configs": [_from_file(secrets_folder, _OWN)],
            "validation_context_sds_secret_config": _from_file(secrets_folder, _PEERS),
        }
    tls = typed(_TLS + "UpstreamTlsContext", common_tls_context=context, sni=_server_name(peer))
    return {"name": "envoy.transport_sockets.tls", "typed_config": tls}


def secret_files(peer: peer_tls.Settings) -> dict[str, str]:
    """The files of a secrets folder, by name, each with one secret.

    They contain the paths of certificate and key, not the content.
    """
    secrets = {
        _OWN: {"tls_certificate": _certificate(peer)},
        _PEERS: {"validation_context": _validation(peer)},
    }
    return {
        _file_name(name): json.dumps({"resources": [typed(_TLS + "Secret", name=name, **secret)]})
        for name, secret in secrets.items()
    }


def _from_file(folder: Path, name: str) -> Json:
    path = {"path": str(folder / _file_name(name))}
    source = {"path_config_source": path, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _file_name(name: str) -> str:
    return f"{name}.json"


def _certificate(peer: peer_tls.Settings) -> Json:
    assert peer.cert_file is not None
    return {
        "certificate_chain": {"filename": str(peer.cert_file)},
        "private_key": {"filename": str(peer.key_file)},
        "watched_directory": {"path": str(peer.cert_file.parent)},
    }


def _validation(peer: peer_tls.Settings) -> Json:
    assert peer.ca_file is not None
    return {
        "trusted_ca": {"filename": str(peer.ca_file)},
        "watched_directory": {"path": str(peer.ca_file.parent)},
        "match_typed_subject_alt_names": [
            {"san_type": "DNS", "matcher": {"exact": _server_name(peer)}}
        ],
    }


def _server_name(peer: peer_tls.Settings) -> str:
    """The name that the control plane shows."""
    return f"edge.{peer.peer_name}" if peer.per_service else peer.peer_name
