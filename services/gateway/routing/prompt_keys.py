"""The key of a prompt, by which gateways choose one of several routers for its request.

Requests with the same new beginning should meet at one router, which knows at once what it has sent
where. A beginning that very many requests share (a system prompt) is cached everywhere before long,
and must not send them all to one router. So the key is the shortest beginning that is not common
among the latest requests of this gateway. Two gateways may differ; routers tell each other.
"""

from collections import Counter
from collections.abc import Iterator

from baton.wire.prefix_hash import HASH_BYTES
from baton.wire.v1 import router_pb2

# Beginnings are common that more than this share of the latest requests have.
COMMON_SHARE = 1 / 16
# The latest requests are the last 512 to 1,024.
NUM_LATEST = 512
_NUM_FIRST = 256


class PromptKeys:
    """Counts the beginnings of the latest prompts: their first 1, 2, 4, 8, ... blocks."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._older: Counter[bytes] = Counter()
        self._num_counted = self._num_older = 0

    def key(self, request: router_pb2.PickRequest) -> bytes:
        """The key of a request, which is counted unless it is a repeated pick."""
        beginnings = list(_beginnings(request.block_hashes))
        if not request.exclude_worker_ids:
            self._count(beginnings)
        most = COMMON_SHARE * max(self._num_counted + self._num_older, _NUM_FIRST)
        for beginning in beginnings:
            if self._counts[beginning] + self._older[beginning] <= most:
                return beginning
        return request.request_id.encode()

    def _count(self, beginnings: list[bytes]) -> None:
        if self._num_counted == NUM_LATEST:
            self._older, self._counts = self._counts, Counter()
            self._num_older, self._num_counted = NUM_LATEST, 0
        self._counts.update(beginnings)
        self._num_counted += 1


def _beginnings(block_hashes: bytes) -> Iterator[bytes]:
    """The hashes of the first 1, 2, 4, 8, ... blocks, and of all."""
    num_blocks, end = len(block_hashes) // HASH_BYTES, 1
    while end < num_blocks:
        yield block_hashes[(end - 1) * HASH_BYTES : end * HASH_BYTES]
        end *= 2
    if num_blocks:
        yield block_hashes[(num_blocks - 1) * HASH_BYTES : num_blocks * HASH_BYTES]
