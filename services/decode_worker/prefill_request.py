"""The words of a decode worker that ask a prefill worker for one transfer."""

from collections.abc import Iterator
from dataclasses import dataclass

from baton.handoff.ticket import Ticket
from baton.wire.v1 import handoff_pb2
from baton.worker.prompt import split_prompt


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """One Prefill. `message` has no prompt before it leaves."""

    ticket: Ticket
    message: handoff_pb2.Prefill
    prompt_ids: bytes
    block_hashes: bytes

    def frames(self) -> Iterator[handoff_pb2.DecodeFrame]:
        """The Prefill with the beginning of its prompt, then the rest of the prompt."""
        deps = split_prompt(self.prompt_ids, self.block_hashes)
        self.message.prompt_ids, self.message.block_hashes = next(deps)
        yield handoff_pb2.DecodeFrame(prefill=self.message)
        for ids, hashes in deps:
            part = handoff_pb2.PrefillPart(
                xfer_id=self.ticket.xfer_id, prompt_ids=ids, block_hashes=hashes
            )
            yield handoff_pb2.DecodeFrame(prefill_part=part)
