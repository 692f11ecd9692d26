"""The prefill side of one transfer: cuts a sequence's KV into frames as it becomes final.

Pull, not push: the stream's writer asks for the next frame when it can write one, so pages are
copied out of the pool only then and nothing piles up. Pages leave in the order in which they become
final, maybe some layers before the others; a partial last block leaves once, at the end; the commit
follows.
Knows nothing of streams, credit or the engine.
"""

from collections import deque
from collections.abc import Sequence
from itertools import groupby

from baton.engine.protocol.device_messages import BlockChecksums
from baton.handoff.block_bytes import BlockBytes
from baton.handoff.frame_codec import OutFrame
from baton.handoff.ticket import Ticket
from baton.handoff.transport import SendingEnd
from baton.wire.v1 import handoff_pb2


class Sender:
    """`rows` are where the blocks lie that the receiver lacks; they stay held by their owner."""

    def __init__(
        self, ticket: Ticket, rows: Sequence[int], blocks: BlockBytes, sending: SendingEnd
    ) -> None:
        assert len(rows) == ticket.num_missing_blocks >= 0
        self.ticket = ticket
        self._rows = rows
        self._blocks = blocks
        self._sending = sending
        # By layer: the blocks before this one are final there, or the receiver has them.
        self._num_ready = [ticket.first_missing_block] * len(blocks.spec.layers)
        # Of some blocks, one per layer, by the block's index.
        self._checksums: dict[int, list[int]] = {}
        # (layers, first block, number of blocks) of the frames that can be sent now.
        self._pieces: deque[tuple[range, int, int]] = deque()
        self._num_messages = 0
        self._all_final = False
        self._committed = False

    @property
    def is_done(self) -> bool:
        """The commit has been handed out."""
        return self._committed

    def add_checksums(self, checksums: Sequence[BlockChecksums]) -> None:
        """Checksums that the device has computed, of blocks that become ready next."""
        self._checksums.update((of_block.index, of_block.sums) for of_block in checksums)

    def advance(self, num_final_tokens: int, num_layers: int | None = None) -> None:
        """The KV of the first `num_final_tokens` tokens will not change any more: in all layers, or
        in the first `num_layers`."""
        num_full = num_final_tokens // self._blocks.spec.block_size
        if num_layers is None:
            num_layers = len(self._num_ready)
        self._make_ready(min(num_full, self.ticket.num_blocks), num_layers)

    def finish(self) -> None:
        """All KV is final, the partial last block's too."""
        self._make_ready(self.ticket.num_blocks, len(self._num_ready))
        self._all_final = True

    def has_next(self) -> bool:
        return bool(self._pieces) or (self._all_final and not self._committed)

    def next_bytes(self) -> int:
        """Payload bytes of the next frame (0 = the commit). Only while has_next()."""
        if not self._pieces:
            return 0
        layers, _, num_blocks = self._pieces[0]
        return num_blocks * self._blocks.stripe_bytes(layers)

    def next_frame(self) -> OutFrame:
        """The next Blocks, or the Commit after the last. Only while has_next()."""
        assert self.has_next()
        ticket = self.ticket
        if not self._pieces:
            self._committed = True
            return handoff_pb2.PrefillFrame(
                commit=handoff_pb2.Commit(
                    xfer_id=ticket.xfer_id,
                    epoch=ticket.epoch,
                    num_messages=self._num_messages,
                    num_blocks=ticket.num_missing_blocks,
                )
            )
        return self._blocks_frame(*self._pieces.popleft())

    def _blocks_frame(self, layers: range, first_block: int, num_blocks: int) -> OutFrame:
        frame = handoff_pb2.PrefillFrame()
        blocks = frame.blocks
        blocks.xfer_id = self.ticket.xfer_id
        blocks.epoch = self.ticket.epoch
        blocks.seq = self._num_messages
        blocks.layer = layers.start
        if len(layers) > 1:
            blocks.num_layers = len(layers)
        blocks.first_block = first_block
        blocks.num_blocks = num_blocks
        blocks.head_hi = self._blocks.spec.layers[layers.start].num_kv_heads
        blocks.capability = self.ticket.capability
        assert len(layers) == 1 or not self._checksums, "a page has a checksum, not a stripe"
        for place in range(num_blocks) if self._checksums else ():
            sums = self._checksums.get(first_block + place)
            if sums is not None:
                blocks.pool_ref.page_checksums.add(place=place, sum=sums[layers.start])
        self._num_messages += 1
        first_row = first_block - self.ticket.first_missing_block
        return self._sending.pack(frame, self._rows[first_row : first_row + num_blocks])

    def _make_ready(self, num_ready: int, num_layers: int) -> None:
        for group in self._sending.layer_groups:
            layers = range(group.start, min(group.stop, num_layers))
            # Pages leave together where those before them have left together.
            for first_block, alike in groupby(layers, key=self._num_ready.__getitem__):
                run = list(alike)
                if first_block < num_ready:
                    self._add_pieces(range(run[0], run[-1] + 1), first_block, num_ready)
        self._num_ready[:num_layers] = [
            max(each, num_ready) for each in self._num_ready[:num_layers]
        ]

    def _add_pieces(self, layers: range, first_block: int, end: int) -> None:
        step = self._sending.max_frame_bytes // self._blocks.stripe_bytes(layers)
        for first in range(first_block, end, step):
            self._pieces.append((layers, first, min(step, end - first)))
