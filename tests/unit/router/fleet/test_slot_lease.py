from hypothesis import given
from hypothesis import strategies as st

from services.router.fleet.worker import SlotLease, SlotLeases


def lease(request_id: str, expires_at: float = 2.0) -> SlotLease:
    return SlotLease(request_id, 1, 10, 100, expires_at)


def test_open_leases_add_up_and_an_ended_one_counts_no_more() -> None:
    leases = SlotLeases()
    leases.take(lease("r1"))
    leases.take(lease("r2"))
    leases.end("r1")
    leases.end("never seen")
    assert (leases.num_sequences, leases.num_blocks, leases.num_prefill_tokens) == (1, 10, 100)


def test_a_lease_ends_by_itself_when_its_time_is_over() -> None:
    leases = SlotLeases()
    leases.take(lease("r1", expires_at=2.0))
    leases.take(lease("r2", expires_at=3.0))
    leases.expire(2.5)
    assert "r1" not in leases
    assert "r2" in leases


def test_a_request_that_is_picked_again_counts_once() -> None:
    leases = SlotLeases()
    leases.take(lease("r1", expires_at=2.0))
    leases.take(lease("r1", expires_at=4.0))
    leases.expire(3.0)
    assert leases.num_sequences == 1


@given(st.lists(st.tuples(st.sampled_from(["take", "end", "expire"]), st.integers(0, 5))))
def test_the_sums_hold_after_any_operations(operations) -> None:
    leases = SlotLeases()
    for now, (name, number) in enumerate(operations):
        if name == "take":
            leases.take(lease(f"r{number}", expires_at=now + 3))
        elif name == "end":
            leases.end(f"r{number}")
        else:
            leases.expire(now)
        leases.check_integrity()
    leases.clear()
    leases.check_integrity()
