"""The decode side of one transfer: verifies every frame and writes it into bound blocks.

Idempotent by (transfer, layer, block): a repeat writes nothing. The transfer is complete when the
commit has come and every (layer, block) was written. Frames that arrive before the blocks are
bound wait here, and their bytes count as not consumed, so that the peer's credit bounds them.
Knows nothing of streams or the engine.
"""

from collections.abc import Callable, Sequence

from baton.handoff.block_bytes import BlockBytes
from baton.handoff.ticket import BadBlocks, ForeignFrame, Ticket
from baton.handoff.transport import Transport
from baton.wire.v1 import handoff_pb2


class Receiver:
    """`on_consumed(num_bytes)` is called for each frame that needs no memory any more."""

    def __init__(
        self,
        ticket: Ticket,
        blocks: BlockBytes,
        transport: Transport,
        on_consumed: Callable[[int], None],
    ) -> None:
        self.ticket = ticket
        self.num_bytes_received = 0
        self._blocks = blocks
        self._transport = transport
        self._on_consumed = on_consumed
        self._block_ids: Sequence[int] | None = None
        self._waiting: list[handoff_pb2.Blocks] = []
        num_missing = ticket.num_missing_blocks
        self._have = [bytearray(num_missing) for _ in blocks.spec.layers]
        self._num_pages_left = num_missing * len(blocks.spec.layers)
        self._num_messages = 0
        self._is_committed = False
        self._is_closed = False

    @property
    def is_bound(self) -> bool:
        return self._block_ids is not None

    @property
    def is_complete(self) -> bool:
        """Every block is here and verified, and the sender has committed."""
        return self._is_committed and self.is_bound and self._num_pages_left == 0

    def bind(self, block_ids: Sequence[int]) -> None:
        """Use this block table from now on, also for the frames that waited. Raises BadBlocks."""
        assert self._block_ids is None, "blocks are bound once"
        assert len(block_ids) >= self.ticket.num_blocks, "the table covers the whole prompt"
        self._block_ids = block_ids
        waiting, self._waiting = self._waiting, []
        for index, frame in enumerate(waiting):
            try:
                self._write(frame)
            except BadBlocks:
                self._consume(waiting[index + 1 :])
                raise

    def take(self, frame: handoff_pb2.Blocks) -> None:
        """One Blocks frame. Raises ForeignFrame (drop it) or BadBlocks (the transfer failed)."""
        assert not self._is_closed
        try:
            self.ticket.check(frame.epoch, frame.capability)
            self._check_place(frame)
        except (ForeignFrame, BadBlocks):
            self._consume([frame])
            raise
        if self._block_ids is None:
            self._waiting.append(frame)
        else:
            self._write(frame)

    def commit(self, frame: handoff_pb2.Commit) -> None:
        """The sender has sent everything. Raises BadBlocks when it counts other than we do."""
        if frame.num_blocks != self.ticket.num_missing_blocks:
            raise BadBlocks(
                "count", f"{frame.num_blocks} blocks sent, {self.ticket.num_missing_blocks} missing"
            )
        self._is_committed = True

    def close(self) -> None:
        """Nothing more is written; waiting frames are dropped."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        self._consume(waiting)

    def _check_place(self, frame: handoff_pb2.Blocks) -> None:
        spec = self._blocks.spec
        if frame.layer >= len(spec.layers):
            raise BadBlocks("layer", f"layer {frame.layer} of {len(spec.layers)}")
        num_heads = spec.layers[frame.layer].num_kv_heads
        if (frame.head_lo, frame.head_hi) != (0, num_heads):
            raise BadBlocks("heads", f"heads {frame.head_lo}:{frame.head_hi} of {num_heads}")
        first, end = frame.first_block, frame.first_block + frame.num_blocks
        lo, hi = self.ticket.first_missing_block, self.ticket.num_blocks
        if first < lo or end > hi:
            raise BadBlocks("range", f"blocks {first}:{end} outside {lo}:{hi}")
        if frame.num_blocks == 0:
            raise BadBlocks("range", "a frame without blocks")

    def _write(self, frame: handoff_pb2.Blocks) -> None:
        assert self._block_ids is not None
        try:
            first = frame.first_block - self.ticket.first_missing_block
            have = self._have[frame.layer]
            num_new = have.count(0, first, first + frame.num_blocks)
            if num_new == 0:
                return
            table = self._block_ids
            ids = table[frame.first_block : frame.first_block + frame.num_blocks]
            self._transport.unpack(frame, ids)
            have[first : first + frame.num_blocks] = b"\1" * frame.num_blocks
            self._num_pages_left -= num_new
            self.num_bytes_received += len(frame.data)
        finally:
            self._consume([frame])

    def _consume(self, frames: Sequence[handoff_pb2.Blocks]) -> None:
        num_bytes = sum(len(frame.data) for frame in frames)
        if num_bytes:
            self._on_consumed(num_bytes)
