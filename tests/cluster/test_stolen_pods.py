"""A stolen pod's certificate: whoever has it makes the calls of its service, and no others.

The calls go out from a gateway's pod, which network policies let through to four services: so it
is the certificate that is judged, not the address.
"""

import base64
import json
from typing import Any

import pytest

from baton.runtime.callers import CALLERS
from tests.cluster.release import Release
from tests.cluster.table import Row

# A method of each service that gateways reach, and its callers' row.
METHODS = {
    "quota": "baton.wire.v1.Quota/Calls",
    "tokenizer": "baton.wire.v1.Tokenizer/Calls",
    "router": "baton.wire.v1.Router/Calls",
    "decode": "baton.wire.v1.DecodeWorker/Serve",
}
SERVICES = ("gateway", "quota", "tokenizer", "router", "worker", "edge", "envoy")
# Runs in the gateway's image, with its input in the place of INPUT.
PROGRAM = """
import grpc, json, sys
given = json.loads(INPUT)
codes = {}
for caller, (key, certificate) in given["certificates"].items():
    own = [text and text.encode() for text in (given["ca"], key, certificate)]
    credentials = grpc.ssl_channel_credentials(*own)
    for server, method in given["methods"].items():
        options = [("grpc.ssl_target_name_override", "baton")]
        with grpc.secure_channel(given["targets"][server], credentials, options) as channel:
            call = channel.stream_stream("/" + method)(iter([]), timeout=20)
            try:
                list(call)
            except grpc.RpcError:
                pass
            codes[f"{caller} {server}"] = call.code().name
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def codes(release: Release) -> dict[str, str]:
    """What came of each call, by "caller server"; the caller "nobody" shows no certificate."""
    data = release.namespace.get("secret", f"{release.fullname}-certificates")["data"]
    files = {name: text_of(content) for name, content in data.items()}
    certificates: dict[str, Any] = {
        name: (files[f"{name}.key"], files[f"{name}.crt"]) for name in SERVICES
    }
    certificates["nobody"] = (None, None)
    # Each by one pod: a Service's name may stand for some that the network does not let through.
    targets = {
        server: f"{release.namespace.address(release.namespace.pods(server)[0])}:7000"
        for server in METHODS
    }
    given = {
        "ca": files["ca.crt"],
        "certificates": certificates,
        "methods": METHODS,
        "targets": targets,
    }
    program = PROGRAM.replace("INPUT", repr(json.dumps(given)))
    pod = release.namespace.pods("gateway")[0]
    # By its input: no argument has a key.
    out = release.namespace.kubectl("exec", "-i", pod, "--", "python", "-", given=program)
    found: dict[str, str] = json.loads(out)
    return found


def text_of(content: str) -> str:
    return base64.b64decode(content).decode()


def test_a_stolen_certificate_makes_the_calls_of_its_own_service_and_no_others(
    release: Release, codes: dict[str, str]
) -> None:
    refused, let_in = set(), set()
    for call, code in codes.items():
        (refused if code in ("PERMISSION_DENIED", "UNAVAILABLE") else let_in).add(call)
    allowed = {
        f"{caller} {server}"
        for server, method in METHODS.items()
        for caller in CALLERS[method.partition("/")[0]]
    }
    row = Row(
        "calls with the certificate of a stolen pod", 1, len(codes), len(let_in - allowed), 0, "-"
    )
    release.rows.append(row)
    assert let_in == allowed
    # Who shows none does not even come to be judged.
    assert {codes[f"nobody {server}"] for server in METHODS} == {"UNAVAILABLE"}
