"""The first hour of a user: what Helm prints works as printed, and so does the OpenAI client."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import openai
import pytest

from tests.cluster.release import CHART, MODEL, Release
from tests.kit.kube.real_cluster import run, wait_until

# The printed curl does not wait for the printed port-forward; a person does.
PATIENT = 'curl() { command curl -sS --retry 30 --retry-connrefused --retry-delay 1 "$@"; }\n'


@contextmanager
def forwarded(release: Release, target: str, port: int) -> Iterator[int]:
    """A local port that leads to a Service."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        local = listener.getsockname()[1]
    command = ("kubectl", "-n", release.namespace.name, "port-forward", target, f"{local}:{port}")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: not listens_nowhere(local), "the port is forwarded", 30)
        yield local
    finally:
        process.terminate()
        process.wait()


def listens_nowhere(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_helm_test_streams_a_completion(release: Release) -> None:
    out = release.namespace.helm("test", release.name, "--logs")
    assert re.search(r"\d+ pieces of text", out)


def test_the_commands_of_the_notes_work_as_printed(release: Release) -> None:
    notes = release.namespace.helm("get", "notes", release.name)
    key, ask = (notes.partition(f"\n{number}. ")[2].partition("\n\n")[0] for number in (2, 3))
    script = (
        PATIENT + key.partition("\n")[2] + "\n" + ask.partition("\n")[2].partition("\n   or:")[0]
    )
    # Only a background process of its own is ended; the port is the one that is printed.
    out = run("bash", "-c", f"{script}\nkill %1")
    assert out.rstrip().endswith("data: [DONE]")


def test_an_openai_client_streams_and_gets_the_same_text_whole(release: Release) -> None:
    with forwarded(release, f"svc/{release.fullname}-envoy", 80) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=release.api_key())
        asked = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "What is TTFT?"}],
            "temperature": 0,
        }
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""


def test_a_response_is_kept_and_found_again(release: Release) -> None:
    with forwarded(release, f"svc/{release.fullname}-envoy", 80) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=release.api_key())
        response = client.responses.create(model=MODEL, input="What is TTFT?", store=True)
        assert client.responses.retrieve(response.id).output_text == response.output_text != ""


def test_the_lines_of_a_file_are_answered_as_a_batch(release: Release) -> None:
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "What is TTFT?"}}]}}'
    line = f'{{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {body}}}'
    with forwarded(release, f"svc/{release.fullname}-envoy", 80) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=release.api_key())
        given = client.files.create(file=("lines.jsonl", line.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch", 90)
        output = client.batches.retrieve(batch.id).output_file_id
        assert output is not None
        assert '"status_code":200' in client.files.content(output).text.replace(" ", "")


@pytest.mark.parametrize(
    "profile", sorted(CHART.glob("ci/*-values.yaml")), ids=lambda path: path.stem
)
def test_the_api_server_accepts_every_profile(release: Release, profile: object) -> None:
    apis = (
        "cert-manager.io/v1",
        "gateway.networking.k8s.io/v1",
        "monitoring.coreos.com/v1",
        "keda.sh/v1alpha1",
    )
    known = run("kubectl", "api-versions").split()
    version = json.loads(run("kubectl", "version", "-o", "json"))["serverVersion"]["gitVersion"]
    # The pod of `helm test` is refused before its account is there.
    options = [f"--kube-version={version}", "--skip-tests", *(f"--api-versions={a}" for a in apis)]
    manifest = release.namespace.helm("template", "other", str(CHART), "-f", str(profile), *options)
    documents = [text for text in manifest.split("\n---\n") if not is_foreign(text, known)]
    strictly = ("--dry-run=server", "--validate=strict")
    release.namespace.kubectl("apply", *strictly, "-f", "-", given="\n---\n".join(documents))


def is_foreign(document: str, known: list[str]) -> bool:
    """Its custom resource is not installed in this cluster."""
    version = re.search(r"^apiVersion: (\S+)", document, re.MULTILINE)
    return version is None or version[1] not in known
