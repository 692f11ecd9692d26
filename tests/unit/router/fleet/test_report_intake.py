"""Sequence numbers, restarts and snapshots of the reports that a router takes in."""

import pytest
from prometheus_client import REGISTRY

from baton.testing.newer_peer import from_the_future, unknown_frame
from baton.testing.virtual_clock import VirtualClock
from baton.wire.failures import Incompatible, InvalidRequest
from baton.wire.protocol import PROTOCOL_VERSION
from baton.wire.v1 import router_pb2, worker_pb2
from services.router.fleet.fleet import Fleet
from services.router.fleet.prefix_index import hashes_of
from services.router.fleet.report_intake import ReportIntake
from services.router.settings import Settings

HOST = "d0:1"


def hash_list(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


class Intake:
    """A ReportIntake with one registered worker of 10 blocks."""

    def __init__(self) -> None:
        self.fleet = Fleet(Settings(), VirtualClock())
        self.intake = ReportIntake(self.fleet, "router-0", 1000)

    def register(self, endpoint: str = HOST, **changes) -> worker_pb2.ReportAck:
        fields = {
            "protocol": PROTOCOL_VERSION,
            "worker_id": "d0",
            "boot_epoch": 1,
            "role": router_pb2.WORKER_ROLE_DECODE,
            "model_fp": "fp-1",
            "block_size": 16,
            "num_blocks": 10,
            "max_num_seqs": 4,
        } | changes
        return self.take(1, endpoint, register=worker_pb2.Register(**fields))

    def take(self, seq: int, endpoint: str = HOST, **report) -> worker_pb2.ReportAck:
        ack = self.intake.take(endpoint, worker_pb2.Report(seq=seq, **report))
        self.intake.check_integrity()
        return ack

    def stored(self, seq: int, *numbers: int) -> worker_pb2.ReportAck:
        stored = worker_pb2.KvStored(hashes=b"".join(hash_list(*numbers)))
        return self.take(
            seq, kv_events=worker_pb2.KvEvents(events=[worker_pb2.KvEvent(stored=stored)])
        )

    def snapshot(self, seq: int, *numbers: int, more: bool = False) -> worker_pb2.ReportAck:
        joined = b"".join(hash_list(*numbers))
        return self.take(seq, snapshot=worker_pb2.KvSnapshot(hashes=joined, more=more))

    def held(self, *numbers: int, endpoint: str = HOST, model_fp: str = "fp-1") -> int:
        hashes = hashes_of(b"".join(hash_list(*numbers)))
        return self.intake.index(model_fp).match(hashes).get(endpoint, 0)


@pytest.fixture
def intake() -> Intake:
    intake = Intake()
    intake.register()
    return intake


def test_each_report_is_acknowledged_by_its_number(intake) -> None:
    assert intake.snapshot(2).seq == 2
    assert intake.stored(3, 1).seq == 3


def test_kv_events_count_only_after_the_first_snapshot(intake) -> None:
    intake.stored(2, 1)
    assert intake.held(1) == 0
    intake.snapshot(3, 1)
    intake.stored(4, 2)
    assert intake.held(1, 2) == 2


def test_a_repeated_report_changes_nothing(intake) -> None:
    intake.snapshot(2)
    intake.take(3, load=worker_pb2.Load(num_running=2))
    ack = intake.take(2, load=worker_pb2.Load(num_running=1))
    assert ack.seq == 3
    assert intake.fleet.get(HOST).load.num_running == 2


def test_after_a_gap_a_snapshot_is_asked_for_and_events_wait_for_it(intake) -> None:
    intake.snapshot(2, 1)
    ack = intake.stored(5, 2)
    assert (ack.seq, ack.want_snapshot) == (5, True)
    assert not intake.stored(6, 3).want_snapshot
    assert intake.held(1, 2) == 1
    intake.snapshot(7, 1, 2, 3)
    assert intake.held(1, 2, 3) == 3


def test_a_load_after_a_gap_still_counts(intake) -> None:
    intake.snapshot(2)
    assert intake.take(9, load=worker_pb2.Load(num_running=3)).want_snapshot
    assert intake.fleet.get(HOST).load.num_running == 3


def test_the_parts_of_a_snapshot_share_a_number(intake) -> None:
    intake.snapshot(2, 1, 2, more=True)
    assert intake.held(1, 2) == 0
    intake.snapshot(2, 3)
    assert intake.held(1, 2, 3) == 3
    assert not intake.stored(3, 4).want_snapshot


def test_a_worker_cannot_hold_more_hashes_than_blocks(intake) -> None:
    intake.snapshot(2, *range(8), more=True)
    intake.snapshot(2, *range(8, 16), more=True)
    intake.snapshot(2, *range(16, 24))
    assert intake.held(*range(24)) == 10


def test_a_new_life_starts_with_an_empty_cache_and_no_leases(intake) -> None:
    intake.snapshot(2, 1)
    intake.take(3, draining=True)
    intake.register(boot_epoch=2)
    assert intake.held(1) == 0
    assert not intake.fleet.get(HOST).draining


def test_the_same_life_on_a_new_stream_keeps_its_state_until_the_snapshot(intake) -> None:
    intake.snapshot(2, 1)
    intake.take(3, load=worker_pb2.Load(num_running=3))
    intake.register()
    assert intake.fleet.get(HOST).load.num_running == 3
    intake.stored(2, 7)
    intake.snapshot(3, 1, 2)
    assert intake.held(1, 2) == 2


def test_a_lost_worker_holds_nothing(intake) -> None:
    intake.snapshot(2, 1)
    assert intake.intake.lose(HOST)
    assert not intake.intake.lose(HOST)
    assert intake.held(1) == 0


def numbered(intake: Intake, seq: int, position: int, *numbers: int) -> worker_pb2.ReportAck:
    stored = worker_pb2.KvStored(hashes=b"".join(hash_list(*numbers)))
    events = worker_pb2.KvEvents(events=[worker_pb2.KvEvent(stored=stored)], position=position)
    return intake.take(seq, kv_events=events)


def numbered_snapshot(intake: Intake, seq: int, position: int, *numbers: int) -> None:
    joined = b"".join(hash_list(*numbers))
    intake.take(seq, snapshot=worker_pb2.KvSnapshot(hashes=joined, position=position))


def digest(intake: Intake, seq: int, position: int, *numbers: int) -> worker_pb2.ReportAck:
    xor = 0
    for block_hash in hash_list(*numbers):
        xor ^= int.from_bytes(block_hash[-8:], "little")
    message = worker_pb2.KvDigest(
        num_hashes=len(numbers), xor=xor.to_bytes(8, "little"), position=position
    )
    return intake.take(seq, digest=message)


def test_a_stream_that_broke_goes_on_where_it_ended(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1)
    numbered(intake, 3, 40, 2)
    intake.intake.lose(HOST)
    hello = intake.intake.hello(HOST)
    assert (hello.resume.boot_epoch, hello.resume.position) == (1, 41)
    intake.register()
    assert intake.held(1, 2) == 2
    numbered(intake, 2, 41, 3)
    assert intake.held(1, 2, 3) == 3


def test_the_next_process_of_a_worker_does_not_go_on_where_the_last_one_ended(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1)
    intake.intake.lose(HOST)
    intake.register(boot_epoch=2)
    assert intake.held(1) == 0
    assert not intake.intake.hello(HOST).HasField("resume")
    numbered(intake, 2, 40, 2)
    assert intake.held(2) == 0


def test_events_from_another_place_ask_for_a_snapshot_while_the_old_index_stays(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1)
    intake.intake.lose(HOST)
    intake.register()
    assert numbered(intake, 2, 42, 3).want_snapshot
    assert intake.held(1) == 1
    assert not numbered(intake, 3, 43, 4).want_snapshot
    numbered_snapshot(intake, 4, 44, 1, 2, 3)
    numbered(intake, 5, 44, 4)
    assert intake.held(1, 2, 3, 4) == 4


def test_a_digest_that_agrees_asks_for_nothing(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1, 2)
    numbered(intake, 3, 40, 3)
    assert not digest(intake, 4, 41, 1, 2, 3).want_snapshot


def test_an_index_that_is_wrong_is_counted_and_built_anew_beside_the_old_one(intake) -> None:
    def drifts() -> float:
        value = REGISTRY.get_sample_value("baton_router_index_drifts_total", {"model_name": ""})
        return value or 0.0

    before = drifts()
    numbered_snapshot(intake, 2, 40, 1, 2)
    assert digest(intake, 3, 40, 1, 5).want_snapshot
    assert drifts() == before + 1
    intake.snapshot(4, 1, more=True)
    assert intake.held(1, 2) == 2
    numbered_snapshot(intake, 4, 41, 5)
    assert intake.held(1, 5) == 2
    assert not digest(intake, 5, 41, 1, 5).want_snapshot


def test_a_digest_of_another_place_says_nothing(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1, 2)
    assert not digest(intake, 3, 41, 9).want_snapshot


def test_a_worker_whose_digest_never_agrees_sends_ever_fewer_snapshots(intake) -> None:
    num_asked = 0
    for seq in range(2, 400, 2):
        numbered_snapshot(intake, seq, 40, 1)
        num_asked += digest(intake, seq + 1, 40, 2).want_snapshot
    assert num_asked <= 10


def test_a_worker_that_left_the_fleet_is_forgotten(intake) -> None:
    numbered_snapshot(intake, 2, 40, 1)
    intake.intake.lose(HOST)
    intake.register(endpoint="elsewhere:1", boot_epoch=2)
    assert intake.held(1) == 0
    assert not intake.intake.hello(HOST).HasField("resume")


def test_a_worker_that_changes_its_model_leaves_the_old_index(intake) -> None:
    intake.snapshot(2, 1)
    intake.register(boot_epoch=2, model_fp="fp-2")
    assert intake.held(1, model_fp="fp-2") == 0
    with pytest.raises(KeyError):
        intake.intake.index("fp-1")


def test_all_cleared_empties_the_cache(intake) -> None:
    intake.snapshot(2, 1)
    event = worker_pb2.KvEvent(all_cleared=True)
    intake.take(3, kv_events=worker_pb2.KvEvents(events=[event]))
    assert intake.held(1) == 0


def test_a_stream_must_start_with_register() -> None:
    with pytest.raises(InvalidRequest):
        Intake().snapshot(1)


def test_broken_hashes_end_the_stream(intake) -> None:
    intake.snapshot(2)
    event = worker_pb2.KvEvent(stored=worker_pb2.KvStored(hashes=b"short"))
    with pytest.raises(InvalidRequest):
        intake.take(3, kv_events=worker_pb2.KvEvents(events=[event]))


def test_an_id_that_another_connected_worker_uses_is_refused_until_that_one_is_lost(
    intake,
) -> None:
    with pytest.raises(Incompatible, match="in use"):
        intake.register(endpoint="elsewhere:1")
    intake.intake.lose(HOST)
    intake.register(endpoint="elsewhere:1", boot_epoch=2)
    assert intake.fleet.get(HOST) is None


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 0},
        {"worker_id": ""},
        {"model_fp": ""},
        {"role": 0},
        {"block_size": 0},
        {"num_blocks": 10**9},
        {"num_blocks": 0},
        {"max_num_seqs": 0},
    ],
)
def test_a_registration_that_cannot_be_true_is_refused(change) -> None:
    with pytest.raises(Incompatible):
        Intake().register(**change)


def test_load_values_that_cannot_be_true_are_clamped(intake) -> None:
    intake.take(
        2,
        load=worker_pb2.Load(
            num_blocks_free=2**32 - 1,
            num_blocks_promised=2**32 - 1,
            prefill_tokens_per_s=float("nan"),
            decode_step_s=-1.0,
            handoff_bytes_per_s=float("inf"),
        ),
    )
    load = intake.fleet.get(HOST).load
    assert (load.num_blocks_free, load.num_blocks_promised) == (10, 10)
    assert (load.prefill_tokens_per_s, load.decode_step_s, load.handoff_bytes_per_s) == (0, 0, 0)


def test_a_newer_worker_is_taken_in_and_a_report_of_an_unknown_kind_is_no_gap(intake) -> None:
    newer = Intake()
    newer.register(protocol=9)
    snapshot = worker_pb2.KvSnapshot(hashes=b"".join(hash_list(1)))
    newer.intake.take(HOST, from_the_future(worker_pb2.Report(seq=2, snapshot=snapshot)))
    assert newer.intake.take(HOST, unknown_frame(worker_pb2.Report, seq=3)).seq == 3
    assert not newer.stored(4, 2).want_snapshot
    assert newer.held(1, 2) == 2
