"""The predictions of large pools, and workers that change or differ in them."""

from random import Random

import pytest

from baton.testing.virtual_clock import VirtualClock, run_virtual
from baton.wire.v1 import peers_pb2, router_pb2
from services.router.fleet.fleet import Fleet
from services.router.fleet.report_intake import ReportIntake
from services.router.peers.turns import Turns
from services.router.pick import selector
from services.router.pick.head_of_line import ReservedWorkers
from services.router.pick.pick_request import PickRequest
from services.router.pick.selector import Selector
from services.router.settings import Settings
from tests.unit.router.conftest import MODEL, WorkerInMemory

ALL = 10**9
DECODE, PREFILL = router_pb2.WORKER_ROLE_DECODE, router_pb2.WORKER_ROLE_PREFILL


@pytest.fixture
def run(clock):
    return lambda scenario: run_virtual(scenario(), clock)


class FullFleet:
    """A selector of workers that have no room; reports reach its fleet as the router's do."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._clock = VirtualClock()
        settings = Settings(disaggregate=self._random.choice(["always", "auto"]))
        fleet = Fleet(settings, self._clock)
        intake = ReportIntake(fleet, "router", settings.max_index_hashes)
        self.apply_report = intake.take
        reserved = ReservedWorkers(self._clock, Turns("router", self._clock))
        self.selector = Selector(settings, self._clock, Random(1), intake, reserved)
        is_measured = self._random.random() < 0.9
        for role, least in ((DECODE, 17), (PREFILL, 0)):
            for number in range(self._random.randrange(least, 40)):
                worker = WorkerInMemory(self, f"{role}-{number}", role, MODEL)
                worker.start()
                self._report(worker, is_measured)

    def _report(self, worker: WorkerInMemory, is_measured: bool) -> None:
        random = self._random
        worker.load(
            num_running=4,
            num_blocks_free=random.randrange(0, 90),
            num_queued_prefill_tokens=random.randrange(0, 3000),
            prefill_tokens_per_s=is_measured * random.choice([0.0, random.uniform(500, 5000)]),
            decode_step_s=random.choice([0.0, random.uniform(0.01, 0.1)]),
            handoff_bytes_per_s=random.choice([0.0, random.uniform(1e5, 1e6)]),
            handoff_s=random.choice([0.0, random.uniform(0.001, 0.01)]),
            step_wait_s=random.choice([0.0, random.uniform(0.001, 0.2)]),
            chunk_tokens=random.choice([0, 64]),
        )
        worker.stored(*range(random.choice([0, 0, 2, 30])))

    def predictions(self) -> list[float]:
        """The predicted time to the first token of prompts of several lengths."""
        requests = [
            router_pb2.PickRequest(
                request_id="r",
                model_fp=MODEL,
                num_prompt_tokens=num_tokens,
                block_hashes=b"".join(n.to_bytes(16, "big") for n in range(num_tokens // 16)),
                expected_output_tokens=10,
            )
            for num_tokens in (1, 40, 200, 900)
        ]
        now = self._clock.now()
        return [self.selector.first_token_s(PickRequest.of(each, now)) for each in requests]


@pytest.mark.parametrize("seed", range(20))
def test_the_first_token_of_a_full_pool_is_predicted_as_of_all_workers(seed, monkeypatch) -> None:
    short = FullFleet(seed).predictions()
    monkeypatch.setattr(selector, "MAX_PLAIN", ALL)
    assert short == pytest.approx(FullFleet(seed).predictions())


def test_a_pool_of_several_block_sizes_is_looked_at_whole(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(20):
            fleet.decode(f"d{number}").load(num_queued_prefill_tokens=number)
        other = fleet.decode("d20")
        other.register.block_size = 32
        other.start(boot_epoch=2)
        prefill = fleet.prefill()
        assert (await fleet.pick()).prefill.worker_id == prefill.register.worker_id

    run(scenario)


def test_a_worker_that_changes_its_model_takes_its_sent_prompts_along(router, run, hashes) -> None:
    async def scenario() -> None:
        fleet = router()
        for model_fp in (MODEL, "fp-2"):
            for number in range(20):
                fleet.decode(f"{model_fp}-d{number}", model_fp)
            fleet.prefill(f"{model_fp}-p", model_fp)
        prompt = {"num_prompt_tokens": 1200, "block_hashes": hashes(*range(75))}
        await fleet.pick("r1", **prompt)
        changed = WorkerInMemory(fleet.core, f"{MODEL}-p", PREFILL, "fp-2")
        changed.start(boot_epoch=2)
        prefill = fleet.prefill(f"{MODEL}-q")
        await fleet.pick("r2", model_fp="fp-2")
        assert (await fleet.pick("r3", **prompt)).prefill.worker_id == prefill.register.worker_id

    run(scenario)


def test_a_peer_may_keep_a_worker_that_this_router_has_not_met(router, run) -> None:
    async def scenario() -> None:
        fleet = router()
        for number in range(20):
            fleet.decode(f"d{number}")
        line = peers_pb2.PeerLine(model_fp=MODEL, reserved_worker_id="d99")
        fleet.core.take_news("peer", peers_pb2.PeerNews(lines=peers_pb2.PeerLines(lines=[line])))
        assert (await fleet.pick()).decode.worker_id

    run(scenario)
