"""Real processes and real faults: one stack for all, a second way into it, a table at the end."""

import os
import random
from collections.abc import Iterator
from urllib.error import URLError

import pytest

from baton.testing.process_faults import ProcessFault

# Before its first import, so that failures tell the difference.
pytest.register_assert_rewrite("tests.chaos.streams")

from tests.chaos.engine import CORE_MODULE, IS_VLLM, OPTIONS, START_TIMEOUT_S  # noqa: E402
from tests.chaos.proxied_way import FIRST_GATEWAY, ProxiedWay, is_ready, proxied_way  # noqa: E402
from tests.chaos.streams import Answer, Stream  # noqa: E402
from tests.chaos.trials import IS_LONG, NUM_EACH, Missed, Trials  # noqa: E402
from tests.e2e.conftest import Stack, wait_until  # noqa: E402

QUIET_TIMEOUT_S = 60
# Between two looks at all processes: twenty a second took them half a core while workers started.
LOOK_EVERY_S, LOOK_AT_LOAD_EVERY_S = 0.5, 0.2
TEST_TIMEOUT_S = 4 * 3600 if IS_LONG else 160 + START_TIMEOUT_S + START_TIMEOUT_S // 4 * NUM_EACH
NUM_PREFILL, NUM_DECODE = 2, 3
# A fault of a worker needs one that dies and one that goes on; the third may still be starting.
NUM_NEEDED = 2
# What no worker may hold once nobody asks for anything.
GAUGES = (
    "baton_kv_blocks_used",
    "baton_kv_blocks_promised",
    "baton_num_requests_parked",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)

# Ten minutes, and two stacks more; the simulation, and the edge before small gateways, are short.
collect_ignore = [] if IS_LONG else ["test_saturation.py", "test_lost_region.py"]
_trials = Trials()


class PoisonedStack(Stack):
    """`baton up` with cores that die of one prompt."""

    program = "tests.chaos.poison.up"
    start_timeout_s = START_TIMEOUT_S


class Target:
    """The stack under test, as faults and clients see it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.rng = random.Random(int(os.environ.get("BATON_CHAOS_SEED", "1")))
        self._right: dict[str, Answer] = {}
        self._is_served: dict[str, bool] = {}

    def stream(self, body: dict, way: ProxiedWay | None = None) -> Stream:
        base_url = way.base_url if way else self.stack.base_url
        return Stream(base_url, self.stack.api_key, body)

    def right_answer(self, body: dict) -> Answer:
        """What nothing disturbed: the tokens of this stack do not depend on other requests."""
        key = repr(sorted(body.items()))
        if key not in self._right:
            answer = self.stream(body).join()
            assert answer.error == ""
            self._right[key] = answer
        return self._right[key]

    def serves(self, body: dict) -> bool:
        """The engine under test serves such a request. Baton's own serves all."""
        if not IS_VLLM:
            return True
        key = repr(sorted(body.items()))
        if key not in self._is_served:
            error = self.stream(body).join().error
            self._is_served[key] = "unsupported_parameter" not in error
        return self._is_served[key]

    def fault(self, name: str, core: bool = False) -> ProcessFault:
        """Aimed at a service, or at the core of a worker."""
        assert self.stack.process is not None
        pid = self.stack.pids()[name]
        if core:
            pid = self._core_of(pid)
        return ProcessFault(pid, stack_pid=self.stack.process.pid)

    def used_blocks(self, role: str = "") -> dict[str, float]:
        """By worker. One that is just being started again holds none."""
        gauges = ("baton_kv_blocks_used", "baton_kv_blocks_promised")
        names = [name for name in self.stack.workers() if name.startswith(role)]
        return {name: self.figure(name, *gauges) for name in names}

    def busy(self, role: str) -> list[str]:
        """Workers of this role that hold blocks now, the fullest first."""
        used = self.used_blocks(role)
        return sorted((name for name in used if used[name]), key=lambda name: -used[name])

    def busiest(self, role: str) -> str:
        """The fullest worker of this role. Raises Missed when none holds a block."""
        if not (busy := self.busy(role)):
            raise Missed
        return busy[0]

    def replicas(self, service: str) -> list[str]:
        return [name for name in self.stack.pids() if name.startswith(f"{service}-")]

    def counts(self, service: str, metric: str) -> dict[str, float]:
        """By replica. One that is just being started again has counted nothing."""
        return {name: self.figure(name, metric) for name in self.replicas(service)}

    def num_moves(self) -> float:
        """Streams that went on elsewhere, so far."""
        return self.stack.metric(FIRST_GATEWAY, "baton_gateway_moves_total")

    def num_ready(self, role: str) -> int:
        """Workers of this role that every router may pick."""
        return min(
            int(self.stack.metric(router, "baton_router_ready_workers", role=role))
            for router in self.replicas("router")
        )

    def wait_until_able(self, num_decode: int = NUM_NEEDED) -> None:
        """Every service but workers says that it is ready, and every router knows enough workers
        for one more to die."""
        wait_until(
            lambda: self._services_are_ready() and self._has(num_decode),
            START_TIMEOUT_S,
            every_s=LOOK_EVERY_S,
        )

    def wait_until_whole(self) -> None:
        """As `wait_until_able`, with every worker."""
        self.wait_until_able(NUM_DECODE)

    def wait_until_quiet(self) -> None:
        """Nothing is held or waits anywhere."""
        wait_until(self._is_quiet, QUIET_TIMEOUT_S, every_s=LOOK_AT_LOAD_EVERY_S)

    def _services_are_ready(self) -> bool:
        state = self.stack.home.read_state()
        assert state is not None
        workers = self.stack.workers()
        services = [row for name, row in state.services.items() if name not in workers]
        urls = [str(row["metrics_url"]) for row in services if row["metrics_url"]]
        return all(is_ready(url.removesuffix("metrics") + "readyz") for url in urls)

    def _has(self, num_decode: int) -> bool:
        try:
            return (
                self.num_ready("prefill") >= NUM_PREFILL and self.num_ready("decode") >= num_decode
            )
        except OSError:
            return False

    def _is_quiet(self) -> bool:
        if any(self.counts("gateway", "baton_gateway_open_requests").values()):
            return False
        return not any(self.figure(name, *GAUGES) for name in self.stack.workers())

    def figure(self, replica: str, *names: str, **labels: str) -> float:
        """As `read_metric`, of one process; 0 of one that is dead."""
        try:
            return self.stack.metric(replica, *names, **labels)
        except URLError as error:
            # Dead, or not yet listening; one that stands still would not refuse.
            if isinstance(error.reason, ConnectionRefusedError):
                return 0.0
            raise
        except ConnectionError:
            return 0.0  # it died while it was asked

    @staticmethod
    def _core_of(front_pid: int) -> int:
        import psutil

        children = psutil.Process(front_pid).children()
        cores = [child.pid for child in children if CORE_MODULE in child.cmdline()]
        assert len(cores) == 1, f"{len(cores)} cores under process {front_pid}"
        return cores[0]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Workers whose tokens do not depend on batch mates, and two of each service that may die. The
    cores die of one prompt (poison/core.py), and differ from the product's in nothing else."""
    folder = tmp_path_factory.mktemp("chaos") / "home"
    sizes = ("--prefill", str(NUM_PREFILL), "--decode", str(NUM_DECODE), "--kv-memory", "16MiB")
    replicas = ("--replicas", "gateway=2,quota=2,tokenizer=2,router=2")
    stack = PoisonedStack(folder, *sizes, *replicas, "--dtype", "float32", *OPTIONS)
    # Faults of connections must meet the blocks, which shared memory would keep from them.
    stack.environment["BATON_WORKER_TRANSPORTS"] = "grpc"
    stack.start()
    target = Target(stack)
    target.wait_until_whole()
    yield target
    assert stack.interrupt() == 0, stack.output.read_text()[-3000:]


@pytest.fixture(scope="session")
def way(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedWay]:
    with proxied_way(target.stack, tmp_path_factory.mktemp("way")) as running:
        yield running


@pytest.fixture
def bare_trials() -> Trials:
    """For tests with processes of their own."""
    return _trials


@pytest.fixture
def trials(target: Target) -> Iterator[Trials]:
    """After a test nothing is held anywhere. Workers that died in it may still be starting."""
    target.wait_until_able()
    yield _trials
    target.wait_until_able()
    target.wait_until_quiet()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/chaos" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _trials.kinds:
        terminalreporter.section("faults")
        for row in _trials.table():
            terminalreporter.write_line(row)
