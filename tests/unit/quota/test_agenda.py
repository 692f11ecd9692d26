"""Leases lapse on time, and tenants that hold none cost nothing."""

import pytest

from baton.wire.failures import Unavailable
from services.quota.agenda import AGENDA_KEY
from services.quota.ledger import LeaseTerms, Ledger
from services.quota.store import RedisStore


async def agenda(bench):
    return {name.decode() for name in await bench.store.execute("ZRANGE", AGENDA_KEY, 0, -1)}


def count_scripts(bench, monkeypatch):
    calls = []
    run_script = RedisStore.run_script

    async def counted(self, name, root, arguments):
        calls.append(name)
        return await run_script(self, name, root, arguments)

    monkeypatch.setattr(RedisStore, "run_script", counted)
    return calls


async def test_idle_tenants_are_not_looked_at(bench, monkeypatch):
    await bench.new_tenants(*(f"idle-{number}" for number in range(100)))
    await bench.ledger.reap()
    calls = count_scripts(bench, monkeypatch)
    await bench.ledger.reap()
    assert calls == ["agenda"]


async def test_a_tenant_without_leases_leaves_the_agenda(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.ledger.reap()
    assert await agenda(bench) == {"acme"}
    await bench.settle(key, "r1")
    bench.pass_time(30)
    assert await bench.ledger.reap() == 0
    assert await agenda(bench) == set()


async def test_a_tenant_with_leases_is_looked_at_when_the_first_one_expires(bench, monkeypatch):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    bench.pass_time(10)
    await bench.reserve(key, "r2")
    await bench.ledger.reap()
    calls = count_scripts(bench, monkeypatch)
    bench.pass_time(19.9)
    await bench.ledger.reap()
    assert "reap" not in calls
    bench.pass_time(0.1)
    assert await bench.ledger.reap() == 1
    bench.pass_time(10)
    assert await bench.ledger.reap() == 1


async def test_a_lease_that_comes_while_its_tenant_is_looked_at_is_not_forgotten(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.settle(key, "r1")
    run_script = bench.store.run_script

    async def reserved_meanwhile(name, root, arguments):
        reply = await run_script(name, root, arguments)
        if name == "reap":
            bench.store.run_script = run_script
            await bench.reserve(key, "r2")
        return reply

    bench.store.run_script = reserved_meanwhile
    await bench.ledger.reap()
    bench.pass_time(31)
    assert await bench.ledger.reap() == 1


async def test_tenants_that_were_taken_when_redis_went_away_are_looked_at_later(bench):
    keys = [await bench.new_key(name) for name in ("a", "b", "c")]
    for key in keys:
        await bench.reserve(key, "r1")
    bench.pass_time(31)
    run_script, num_reaps = bench.store.run_script, 0

    async def goes_away(name, root, arguments):
        nonlocal num_reaps
        num_reaps += name == "reap"
        if num_reaps == 2:
            raise Unavailable("gone")
        return await run_script(name, root, arguments)

    bench.store.run_script = goes_away
    with pytest.raises(Unavailable):
        await bench.ledger.reap()
    bench.store.run_script = run_script
    assert await bench.ledger.reap() == 2


async def test_what_a_lost_replica_had_taken_is_found_by_a_look_at_all(bench):
    key = await bench.new_key()
    await bench.reserve(key, "r1")
    await bench.store.execute("DEL", AGENDA_KEY)
    other = Ledger(
        bench.store, bench.registry, LeaseTerms(30, 3600), clock_ms=lambda: bench.now_ms[0]
    )
    bench.pass_time(31)
    assert await other.reap() == 0
    await other.look_at_all()
    assert await other.reap() == 1


async def test_many_tenants_are_reaped_in_one_round(bench):
    for key in await bench.new_tenants(*(f"t{number}" for number in range(150))):
        await bench.reserve(key, "r1")
    bench.pass_time(31)
    assert await bench.ledger.reap() == 150
    assert await agenda(bench) == set()
