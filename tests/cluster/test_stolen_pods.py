"""A stolen pod's certificate: it makes the calls of its service, and no others.

The calls go out from a pod of a gateway or of Envoy, which network policies let through: so it is
the certificate that is judged, not the address. Both images have Python.
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
# The services as which they answer.
ANSWERS_AS = {"quota": "quota", "tokenizer": "tokenizer", "router": "router", "decode": "worker"}
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
        options = [("grpc.ssl_target_name_override", given["names"][server])]
        with grpc.secure_channel(given["targets"][server], credentials, options) as channel:
            call = channel.stream_stream("/" + method)(iter([]), timeout=20)
            try:
                list(call)
            except grpc.RpcError:
                pass
            codes[f"{caller} {server}"] = call.code().name
print(json.dumps(codes))
"""


# As Envoy asks a gateway: what it answers to each certificate.
HTTP_PROGRAM = """
import http.client, json, ssl, tempfile
given = json.loads(INPUT)
codes = {}
for caller, (key, certificate) in given["certificates"].items():
    context = ssl.create_default_context(cadata=given["ca"])
    context.check_hostname = False
    if key:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(key + certificate)
            file.flush()
            context.load_cert_chain(file.name)
    for path in ("/v1/models", "/readyz"):
        connection = http.client.HTTPSConnection(given["gateway"], timeout=20, context=context)
        connection.request("GET", path)
        codes[f"{caller} {path}"] = connection.getresponse().status
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def given(release: Release) -> dict[str, Any]:
    """The certificates of the release, and where its servers are."""
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
    gateway = release.namespace.address(release.namespace.pods("gateway")[0])
    return {
        "ca": files["ca.crt"],
        "certificates": certificates,
        "methods": METHODS,
        "names": {server: f"{name}.baton" for server, name in ANSWERS_AS.items()},
        "targets": targets,
        "gateway": f"{gateway}:8080",
    }


def run_in(release: Release, component: str, program: str, given: dict[str, Any]) -> dict[str, Any]:
    """What a program prints in a pod. It comes by its input: no argument has a key."""
    pod = release.namespace.pods(component)[0]
    text = program.replace("INPUT", repr(json.dumps(given)))
    found: dict[str, Any] = json.loads(
        release.namespace.kubectl("exec", "-i", pod, "--", "python", "-", given=text)
    )
    return found


def text_of(content: str) -> str:
    return base64.b64decode(content).decode()


def test_a_stolen_certificate_makes_the_calls_of_its_own_service_and_no_others(
    release: Release, given: dict[str, Any]
) -> None:
    # By "caller server"; the caller "nobody" shows no certificate.
    codes = run_in(release, "gateway", PROGRAM, given)
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


def test_a_server_answers_for_no_other_service(release: Release, given: dict[str, Any]) -> None:
    own = {"gateway": given["certificates"]["gateway"]}
    answered = []
    for name in set(ANSWERS_AS.values()):
        names = dict.fromkeys(METHODS, f"{name}.baton")
        codes = run_in(release, "gateway", PROGRAM, {**given, "certificates": own, "names": names})
        answered += [(call, name) for call, code in codes.items() if code != "UNAVAILABLE"]
    asked = len(METHODS) * len(set(ANSWERS_AS.values()))
    right = {(f"gateway {server}", name) for server, name in ANSWERS_AS.items()}
    wrong = len(set(answered) - right)
    release.rows.append(Row("calls to a stolen pod as another service", 1, asked, wrong, 0, "-"))
    assert set(answered) == right


def test_gateways_answer_to_the_certificate_of_envoy_alone(
    release: Release, given: dict[str, Any]
) -> None:
    codes = run_in(release, "envoy", HTTP_PROGRAM, given)
    api = {caller.partition(" ")[0]: codes[caller] for caller in codes if "/v1/" in caller}
    let_in = {caller for caller, code in api.items() if code != 403}
    name = "requests to a gateway with the certificate of a stolen pod"
    release.rows.append(Row(name, 1, len(api), len(let_in - {"envoy"}), 0, "-"))
    # Without a key; a caller that is let in hears about that.
    assert (let_in, api["envoy"]) == ({"envoy"}, 401)
    assert {codes[f"{caller} /readyz"] for caller in api} == {200}
