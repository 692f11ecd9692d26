from baton.handoff.lease import LeaseTable
from baton.testing.virtual_clock import VirtualClock


def make_table(max_leases: int = 8) -> tuple[LeaseTable[int], VirtualClock]:
    clock = VirtualClock()
    return LeaseTable(clock, duration_s=5, max_leases=max_leases), clock


def test_a_lease_ends_after_its_duration() -> None:
    table, clock = make_table()
    table.grant(1)
    clock.advance(4.9)
    assert table.sweep() == []

    clock.advance(0.1)

    assert table.sweep() == [1]
    assert table.sweep() == []


def test_renewal_counts_from_now() -> None:
    table, clock = make_table()
    table.grant(1)
    clock.advance(4)

    assert table.renew(1)

    clock.advance(4)
    assert table.sweep() == []
    table.check_integrity()


def test_an_ended_lease_cannot_be_renewed() -> None:
    table, _ = make_table()
    table.grant(1)
    table.release(1)

    assert not table.renew(1)
    assert not table.release(1)
    assert len(table) == 0


def test_one_sweep_finds_every_expired_lease_in_any_order() -> None:
    table, clock = make_table()
    for key in range(6):
        table.grant(key)
    clock.advance(3)
    table.renew(0)
    table.renew(3)
    clock.advance(3)

    assert table.sweep() == [1, 2, 4, 5]
    assert 0 in table


def test_a_full_table_grants_no_more() -> None:
    table, _ = make_table(max_leases=2)
    table.grant(1)
    table.grant(2)

    assert not table.can_grant()

    table.release(1)
    assert table.can_grant()
