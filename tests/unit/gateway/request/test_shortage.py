"""Many answers of one key under a limit of tokens per minute that is too small for all at once."""

import asyncio

from baton.wire.v1 import failure_pb2, quota_pb2
from tests.unit.gateway.fakes import Fleet, simulate

NUM_CHATS = 40
NUM_TOKENS = 1000
TOKENS_PER_MINUTE = 60_000


class Minute:
    """The bucket of one key, as quota has it, empty but for `level`; extensions come out of it."""

    def __init__(self, fleet: Fleet, level: float) -> None:
        self._clock = fleet.clock
        self._level = level
        self._filled_s = self._clock.now()
        self._quota = fleet.quota
        self._granted: dict[str, int] = {}
        self.num_asks = 0

    def renew(self, renewal: quota_pb2.LeaseRenewal) -> tuple[int, quota_pb2.LeaseState.State]:
        now_s, rate = self._clock.now(), TOKENS_PER_MINUTE / 60
        self._level += (now_s - self._filled_s) * rate
        self._filled_s = now_s
        granted = self._granted.get(renewal.request_id, renewal.granted_output_tokens)
        more = renewal.wanted_output_tokens - granted
        self.num_asks += more > 0
        if more > self._level:
            self._quota.retry_after_ms = round((more - self._level) / rate * 1000)
            return granted, quota_pb2.LeaseState.STATE_SHORT
        if more > 0:
            self._level -= more
            granted += more
        self._granted[renewal.request_id] = granted
        return granted, quota_pb2.LeaseState.STATE_HELD


def test_forty_answers_of_a_key_whose_minute_is_empty_all_come_to_their_end() -> None:
    async def scenario(fleet: Fleet) -> None:
        fleet.worker.texts = ["x" * NUM_TOKENS]
        fleet.worker.step_s = 0.02
        fleet.quota.principal.limits.tokens_per_minute = TOKENS_PER_MINUTE
        fleet.quota.limits = failure_pb2.LimitState(limit_tokens=TOKENS_PER_MINUTE)
        minute = Minute(fleet, level=0.0)
        fleet.quota.on_renewal = minute.renew
        sinks = await asyncio.gather(*[fleet.chat() for _ in range(NUM_CHATS)])
        assert [(len(sink.text()), sink.reason()) for sink in sinks] == (
            [(NUM_TOKENS, "stop")] * NUM_CHATS
        )
        # All that was not reserved at first came from the bucket, which was never left idle.
        needed = NUM_CHATS * (NUM_TOKENS - 512)
        assert fleet.clock.now() < 1.15 * needed / (TOKENS_PER_MINUTE / 60) + 12
        assert minute.num_asks < 6 * needed / 100

    simulate(scenario)
