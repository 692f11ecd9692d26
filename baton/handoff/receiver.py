"""The decode side of one transfer: has every frame written into bound blocks and verified there.

Idempotent by (transfer, layer, block): a repeat writes nothing. The transfer is complete when the
commit has come and every (layer, block) was verified; bad pages fail it, and what they left in a
block is overwritten by the next try or never read. Frames that arrive before the blocks are bound
wait here, and their bytes count as not consumed, so that the peer's credit bounds them. Knows
nothing of transports, streams or the engine.
"""

from collections.abc import Callable, Sequence
from functools import partial

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.outcomes import BadBlocksCause
from baton.handoff.stripes import layers_of
from baton.handoff.ticket import BadBlocks, Ticket
from baton.handoff.transport import Landed, Pages, num_payload_bytes
from baton.wire.kv_spec import KVSpec
from baton.wire.v1 import handoff_pb2


class MissingPages:
    """The pages of a transfer that have not arrived, by layer and missing block."""

    def __init__(self, spec: KVSpec, ticket: Ticket) -> None:
        num_blocks = ticket.num_missing_blocks
        self.num_left = num_blocks * len(spec.layers)
        self._first_block = ticket.first_missing_block
        self._have = [bytearray(num_blocks) for _ in spec.layers]
        self._page_bytes = [layer.page_bytes(spec.block_size) for layer in spec.layers]

    def num_in(self, frame: handoff_pb2.Blocks) -> int:
        """The number of the frame's pages that are missing."""
        first, end = self._range_of(frame)
        return sum(self._have[layer].count(0, first, end) for layer in layers_of(frame))

    def arrived(self, frame: handoff_pb2.Blocks) -> int:
        """Note that the frame's pages are here; returns the bytes of those that were missing."""
        first, end = self._range_of(frame)
        num_bytes = 0
        for layer in layers_of(frame):
            have = self._have[layer]
            num_new = have.count(0, first, end)
            have[first:end] = b"\1" * frame.num_blocks
            self.num_left -= num_new
            num_bytes += num_new * self._page_bytes[layer]
        return num_bytes

    def _range_of(self, frame: handoff_pb2.Blocks) -> tuple[int, int]:
        first = frame.first_block - self._first_block
        return first, first + frame.num_blocks


class Receiver:
    """`on_consumed(num_bytes)` is called for each frame whose pages need no memory any more.

    `on_late` gets the outcome of frames that were not there yet when `take` or `bind` returned.
    """

    def __init__(
        self,
        ticket: Ticket,
        blocks: BlockBytes,
        on_consumed: Callable[[int], None],
        on_late: Landed,
    ) -> None:
        self.ticket = ticket
        self.num_bytes_received = 0
        self._blocks = blocks
        self._on_consumed = on_consumed
        self._on_late = on_late
        self._rows: Sequence[int] | None = None
        self._waiting: list[tuple[handoff_pb2.Blocks, Pages]] = []
        self._missing = MissingPages(blocks.spec, ticket)
        self._is_committed = False
        self._is_closed = False

    @property
    def is_bound(self) -> bool:
        return self._rows is not None

    @property
    def is_complete(self) -> bool:
        """Every block is here and verified, and the sender has committed."""
        return self._is_committed and self.is_bound and self._missing.num_left == 0

    def bind(self, rows: Sequence[int]) -> None:
        """Write the missing blocks into these rows from now on, also those of frames that waited.

        Raises BadBlocks.
        """
        assert self._rows is None, "blocks are bound once"
        assert len(rows) == self.ticket.num_missing_blocks, "each missing block has a row"
        self._rows = rows
        waiting, self._waiting = self._waiting, []
        for index, (frame, pages) in enumerate(waiting):
            try:
                self._write(frame, pages)
            except BadBlocks:
                for unread in waiting[index + 1 :]:
                    self._consume(*unread)
                raise

    def check(self, frame: handoff_pb2.Blocks) -> None:
        """Check that a frame belongs here, before its pages are fetched.

        Raises ForeignFrame (drop it) or BadBlocks (the transfer failed).
        """
        self.ticket.check(frame.epoch, frame.capability)
        self._check_range(frame)

    def take(self, frame: handoff_pb2.Blocks, pages: Pages) -> None:
        """The pages of a checked frame. Raises BadBlocks."""
        if self._is_closed:
            self._consume(frame, pages)
        elif self._rows is None:
            self._waiting.append((frame, pages))
        else:
            self._write(frame, pages)

    def commit(self, frame: handoff_pb2.Commit) -> None:
        """The sender has sent everything. Raises BadBlocks when it counts other than we do."""
        if frame.num_blocks != self.ticket.num_missing_blocks:
            raise BadBlocks(
                BadBlocksCause.COUNT,
                f"{frame.num_blocks} blocks sent, {self.ticket.num_missing_blocks} missing",
            )
        self._is_committed = True

    def close(self) -> None:
        """Nothing more is written; waiting frames are dropped."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for unread in waiting:
            self._consume(*unread)

    def _check_range(self, frame: handoff_pb2.Blocks) -> None:
        spec, layers = self._blocks.spec, layers_of(frame)
        if layers.stop > len(spec.layers):
            raise BadBlocks(
                BadBlocksCause.LAYER, f"layers {layers.start}:{layers.stop} of {len(spec.layers)}"
            )
        for num_heads in {spec.layers[layer].num_kv_heads for layer in layers}:
            if (frame.head_lo, frame.head_hi) != (0, num_heads):
                raise BadBlocks(
                    BadBlocksCause.HEADS, f"heads {frame.head_lo}:{frame.head_hi} of {num_heads}"
                )
        first, end = frame.first_block, frame.first_block + frame.num_blocks
        lo, hi = self.ticket.first_missing_block, self.ticket.num_blocks
        if first < lo or end > hi:
            raise BadBlocks(BadBlocksCause.RANGE, f"blocks {first}:{end} outside {lo}:{hi}")
        if frame.num_blocks == 0:
            raise BadBlocks(BadBlocksCause.RANGE, "a frame without blocks")

    def _write(self, frame: handoff_pb2.Blocks, pages: Pages) -> None:
        assert self._rows is not None
        try:
            if self._missing.num_in(frame) == 0:
                return
            first = frame.first_block - self.ticket.first_missing_block
            rows = self._rows[first : first + frame.num_blocks]
            if pages.land(self._blocks, frame, rows, partial(self._landed_late, frame)):
                self._landed(frame)
        finally:
            self._consume(frame, pages)

    def _landed(self, frame: handoff_pb2.Blocks) -> None:
        self.num_bytes_received += self._missing.arrived(frame)

    def _landed_late(self, frame: handoff_pb2.Blocks, fault: BadBlocks | None) -> None:
        if self._is_closed:
            return
        if fault is None:
            self._landed(frame)
        self._on_late(fault)

    def _consume(self, frame: handoff_pb2.Blocks, pages: Pages) -> None:
        pages.release()
        self._on_consumed(num_payload_bytes(frame))
