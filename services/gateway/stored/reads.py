"""The bound on what each tenant reads from the store: no request of a model pays for that.

Each request takes from its tenant's bucket, and so does each byte that the store answers. A request
is refused while the bucket is empty; one that has begun may bring it into debt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.system.clock import Clock
from baton.wire.failures import LimitExceeded
from services.gateway.stored.store import Argument, Commands

# A tenant at one gateway: so much at once, and so much in each second.
BURST_BYTES = 64 * 1024 * 1024
BYTES_PER_S = 8 * 1024 * 1024
# Of a request, besides what it reads.
REQUEST_BYTES = 64 * 1024
_MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _Bucket:
    level: float
    filled_s: float

    def refill(self, now_s: float) -> None:
        gained = (now_s - self.filled_s) * BYTES_PER_S
        self.level, self.filled_s = min(self.level + gained, BURST_BYTES), now_s


class ReadLimit:
    """The buckets of all tenants that read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def admit(self, tenant: str) -> None:
        """Let a request of a tenant begin. Raises LimitExceeded."""
        bucket = self._bucket_of(tenant)
        if bucket.level <= 0:
            message = "this tenant reads too much of what is stored"
            wait_s = (REQUEST_BYTES - bucket.level) / BYTES_PER_S
            raise LimitExceeded(message, reason="share_exceeded", retry_after_s=wait_s)
        bucket.level -= REQUEST_BYTES

    def charge(self, tenant: str, num_bytes: int) -> None:
        """Note what a request of a tenant has read."""
        self._bucket_of(tenant).level -= num_bytes

    def _bucket_of(self, tenant: str) -> _Bucket:
        now_s = self._clock.now()
        if tenant not in self._buckets:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._drop_full(now_s)
            self._buckets[tenant] = _Bucket(BURST_BYTES, now_s)
        bucket = self._buckets[tenant]
        bucket.refill(now_s)
        return bucket

    def _drop_full(self, now_s: float) -> None:
        for bucket in self._buckets.values():
            bucket.refill(now_s)
        self._buckets = {
            tenant: bucket for tenant, bucket in self._buckets.items() if bucket.level < BURST_BYTES
        }


class MeteredCommands:
    """Commands whose answers are charged to the tenant whose keys they name."""

    def __init__(self, commands: Commands, limit: ReadLimit) -> None:
        self._commands = commands
        self._limit = limit

    async def run_script(self, name: str, root: str, arguments: Sequence[Argument]) -> Any:
        return await self._commands.run_script(name, root, arguments)

    async def execute(self, *command: Argument) -> Any:
        answer = await self._commands.execute(*command)
        _, _, behind = str(command[1]).partition("{")
        if tenant := behind.partition("}")[0]:
            self._limit.charge(tenant, _num_bytes(answer))
        return answer

    async def used_share(self) -> float:
        return await self._commands.used_share()

    async def close(self) -> None:
        await self._commands.close()


def _num_bytes(answer: Any) -> int:
    """The bytes of texts in an answer, which may be lists of others."""
    if isinstance(answer, bytes):
        return len(answer)
    if isinstance(answer, dict):
        return sum(map(_num_bytes, answer.values()))
    return sum(map(_num_bytes, answer)) if isinstance(answer, list | tuple) else 0
