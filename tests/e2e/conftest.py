"""The real stack as processes, started through the same command that people use."""

import atexit
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from baton.localstack.home import Home

# None of these is a promise: they end what hangs, on a machine that others use, too.
START_TIMEOUT_S = 240
COMMAND_TIMEOUT_S = 240
TEST_TIMEOUT_S = 600
ANSWER_TIMEOUT_S = 120
METRICS_TIMEOUT_S = 60
ROOT = Path(__file__).parents[2]
# No request of a test takes as long, though the first readers of hundreds have stalled long before
# the last ones get a place in the batch.
PATIENCE_S = 1800
# By file, where it is not the shared one; empty where each test starts its own.
STACK_OF = {
    "test_edge.py": "edge",
    "test_killed_clients.py": "small",
    "test_life_of_a_stack.py": "",
    "test_stalled_readers.py": "small",
}


@contextlib.contextmanager
def starting_alone() -> Iterator[None]:
    """Stacks that start at once may draw the same free port, which neither listens on yet."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class Stack:
    """One `baton up` in a folder of its own."""

    # Another one when parts of the stack are not the product's.
    program = "baton.cli"
    start_timeout_s = START_TIMEOUT_S

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.home = Home(folder)
        self.arguments = list(arguments)
        self.environment = {
            **os.environ,
            "BATON_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            # In production a Redis that is slow must not hold up a request; here nobody has a core.
            "BATON_QUOTA_REDIS_TIMEOUT_S": "20",
            "BATON_TOKENIZER_TEMPLATE_DEADLINE_S": "60",
        }
        self.environment.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
        self.output = folder.parent / f"{folder.name}.out"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Stack":
        with starting_alone():
            self._start()
        return self

    def _start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.program, "up", "--port", "0", *self.arguments],
                env=self.environment,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_until(self._ready, self.start_timeout_s)
        except BaseException:
            # Whatever it started dies with it.
            self.process.kill()
            self.process.wait()
            raise

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()[-4000:]
        state = self.home.read_state()
        return state is not None and state.ready

    def pids(self) -> dict[str, int]:
        state = self.home.read_state()
        return {name: int(row["pid"]) for name, row in state.services.items()} if state else {}

    def all_pids(self) -> list[int]:
        """Every process of the stack, cores included."""
        import psutil

        assert self.process is not None
        root = psutil.Process(self.process.pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]

    def interrupt(self, times: int = 1) -> int:
        """Ctrl-C; returns the exit status."""
        assert self.process is not None
        for _ in range(times):
            self.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        return self.process.wait(timeout=COMMAND_TIMEOUT_S)

    @property
    def base_url(self) -> str:
        return self.home.read_dev_env()["BASE_URL"]

    @property
    def api_key(self) -> str:
        return self.home.read_dev_env()["API_KEY"]

    def client(self, api_key: str = "") -> openai.OpenAI:
        """A client without the certificates of all authorities: they take 30 ms to read each
        time."""
        client = openai.OpenAI(
            base_url=self.base_url, api_key=api_key or self.api_key, max_retries=0,
            timeout=ANSWER_TIMEOUT_S, http_client=openai.DefaultHttpxClient(verify=False),
        )  # fmt: skip
        # Left to the garbage collector, its sockets are warnings, and warnings are errors.
        atexit.register(client.close)
        return client

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=self.base_url, api_key=self.api_key, max_retries=0,
            timeout=ANSWER_TIMEOUT_S, http_client=openai.DefaultAsyncHttpxClient(verify=False),
        )  # fmt: skip

    def command_line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "baton.cli", *arguments]

    def command(self, *arguments: str) -> subprocess.CompletedProcess:
        with starting_alone() if arguments[0] == "up" else contextlib.nullcontext():
            return subprocess.run(
                self.command_line(*arguments),
                env=self.environment, cwd=ROOT, capture_output=True, text=True,
                timeout=COMMAND_TIMEOUT_S, check=False,
            )  # fmt: skip

    def metric(self, service: str, *names: str, **labels: str) -> float:
        """As `read_metric`, of one service."""
        state = self.home.read_state()
        assert state is not None
        return read_metric(str(state.services[service]["metrics_url"]), *names, **labels)

    def workers(self) -> list[str]:
        return [name for name in self.pids() if name.startswith(("prefill", "decode"))]

    def used_blocks(self) -> dict[str, float]:
        gauges = ("baton_kv_blocks_used", "baton_kv_blocks_promised")
        return {name: self.metric(name, *gauges) for name in self.workers()}

    def usage_records(self, request_id: str) -> list[dict]:
        """Those that are whole: one may be in the writing."""
        lines = [
            json.loads(line)
            for path in sorted(self.home.usage.glob("usage-*.jsonl"))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return [line for line in lines if line["request_id"] == request_id]


def read_metric(url: str, *names: str, **labels: str) -> float:
    """Sum over the samples of these metrics that carry these labels, all from one page."""
    with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        if not line.startswith(names):
            continue
        match = re.match(r"([^\s{]+)(?:\{(.*)\})? (\S+)$", line)
        if match and match[1] in names:
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total += float(match[3])
    return total


def wait_until(
    condition: Callable[[], object], timeout_s: float = 60, *, every_s: float = 0.05
) -> None:
    """Poll until the condition holds; fails when it does not hold in time. A condition that asks
    processes costs them a few milliseconds, and one that starts a process tenths of a second."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(every_s)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e" in item.path.as_posix() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


class ByStack(LoadScopeScheduling):
    """Tests that run side by side start no stack twice: all tests of one stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith("tests/e2e/"):
            return file
        return STACK_OF.get(Path(file).name, "shared") or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByStack:
    return ByStack(config, log)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The default stack on the demo model in float32, shared by tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("stack") / "home"
    running = Stack(folder, "--dtype", "float32", "--alias", "gpt-4o=baton-demo").start()
    yield running
    assert running.interrupt() == 0, running.output.read_text()[-3000:]


def patience() -> dict[str, str]:
    """Settings of a stack that cuts nobody off. No spans: their receiver is no part of a
    deployment."""
    names = ("GATEWAY_STALL_S", "GATEWAY_DEADLINE_S", "GATEWAY_TOKEN_GAP_S", "ROUTER_MAX_WAIT_S")
    limits = {f"BATON_{name}": str(PATIENCE_S) for name in names}
    return limits | {"OTEL_TRACES_SAMPLER_ARG": "0"}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One pair of workers with room for about four stories at once, that cuts nobody off."""
    folder = tmp_path_factory.mktemp("small") / "home"
    running = Stack(folder, "--decode", "1", "--dtype", "float32", "--kv-memory", "8MiB")
    running.environment |= patience()
    running.start()
    yield running
    assert running.interrupt() == 0, running.output.read_text()[-3000:]


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[tuple[str, int]]]:
    """What transformers' own `generate` answers on the same weights: (text, number of tokens)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from baton.demo_model import demo_model_path

    torch.set_num_threads(1)
    path = str(demo_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def answer(question: str, max_tokens: int, **options: object) -> list[tuple[str, int]]:
        messages = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            outputs = model.generate(
                **inputs, max_new_tokens=max_tokens, do_sample=False, **options
            )
        new = [tokens[inputs["input_ids"].shape[1] :].tolist() for tokens in outputs]
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        # A batch pads what ended earlier.
        new = [ids[: next((i + 1 for i, t in enumerate(ids) if t in ends), None)] for ids in new]
        return [(tokenizer.decode(ids, skip_special_tokens=True), len(ids)) for ids in new]

    return answer


@pytest.fixture(scope="session")
def reference(
    generate: Callable[..., list[tuple[str, int]]],
) -> Callable[[str, int], tuple[str, int]]:
    """The greedy answer: (text, number of tokens)."""
    return lambda question, max_tokens: generate(question, max_tokens)[0]
