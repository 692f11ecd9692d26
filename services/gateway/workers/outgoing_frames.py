"""Frames for one decode worker that were not written yet.

They are written in this order: cancels, credits (merged into one frame), submits. Knows no stream.
"""

from collections import deque
from collections.abc import Container, Iterator
from itertools import chain

from baton.wire.prefix_hash import HASH_BYTES, TOKEN_BYTES
from baton.wire.v1 import worker_pb2
from services.gateway.workers.attempt import AttemptKey

# A frame may hold 1 MiB; ids and hashes of one part stay well below.
PART_TOKENS = 131_072
# Output tokens of earlier attempts that fit in beside a part of the prompt.
MAX_EMITTED_BYTES = 128 * 1024


class OutgoingFrames:
    """The queue of one link. `open_handles`: the attempts that can still use credit."""

    def __init__(self, open_handles: Container[int]) -> None:
        self._open_handles = open_handles
        self._cancels: deque[worker_pb2.GatewayFrame] = deque()
        self._credits: dict[tuple[int, int], int] = {}
        # Handle -> what was not written yet of a submit.
        self._submits: dict[int, _UnwrittenSubmit] = {}

    def submit(self, submit: worker_pb2.Submit) -> None:
        self._submits[submit.handle] = _UnwrittenSubmit(submit)

    def credit(self, handle: int, choice: int, up_to_index: int) -> None:
        """Queue a credit; it replaces one of the same choice that was not written yet."""
        self._credits[handle, choice] = up_to_index

    def cancel_choice(self, handle: int, choice: int) -> None:
        cancel = worker_pb2.CancelChoices(handle=handle, choices=[choice])
        self._cancels.append(worker_pb2.GatewayFrame(cancel_choices=cancel))

    def cancel(self, key: AttemptKey) -> None:
        """Stop a whole attempt; the rest of its submit is not sent."""
        self.drop_submit(key.handle)
        whole = worker_pb2.Cancel(request_id=key.request_id, epoch=key.epoch)
        self._cancels.append(worker_pb2.GatewayFrame(cancel=whole))

    def drop_submit(self, handle: int) -> None:
        """Forget the frames of this submit that were not written."""
        self._submits.pop(handle, None)

    def is_unheard_of(self, handle: int) -> bool:
        """True while nothing of this submit was written: the worker does not know the attempt."""
        unwritten = self._submits.get(handle)
        return unwritten is not None and unwritten.is_whole

    def next_frame(self) -> worker_pb2.GatewayFrame | None:
        """The next frame to write, if there is one."""
        if self._cancels:
            return self._cancels.popleft()
        credits = self._due_credits()
        if credits.handles:
            return worker_pb2.GatewayFrame(credits=credits)
        for handle, unwritten in self._submits.items():
            frame = unwritten.take()
            if unwritten.is_empty:
                del self._submits[handle]
            return frame
        return None

    def _due_credits(self) -> worker_pb2.Credits:
        """All credits whose submits were written; the others must not overtake theirs."""
        due, waiting = worker_pb2.Credits(), {}
        for (handle, choice), up_to_index in self._credits.items():
            if handle in self._submits:
                waiting[handle, choice] = up_to_index
            elif handle in self._open_handles:
                due.handles.append(handle)
                due.choices.append(choice)
                due.up_to_index.append(up_to_index)
        self._credits = waiting
        return due


class _UnwrittenSubmit:
    """The frames of a submit that were not written. One is made at a time: a long prompt is copied
    over many turns of the event loop."""

    def __init__(self, submit: worker_pb2.Submit) -> None:
        self.is_whole = True
        self._frames = submit_frames(submit)
        self._next = next(self._frames, None)

    @property
    def is_empty(self) -> bool:
        return self._next is None

    def take(self) -> worker_pb2.GatewayFrame:
        """The next frame. Only where it is not empty."""
        frame = self._next
        assert frame is not None, "it is dropped when it is empty"
        self._next, self.is_whole = next(self._frames, None), False
        return frame


def submit_frames(submit: worker_pb2.Submit) -> Iterator[worker_pb2.GatewayFrame]:
    """The submit and its continuations: one that is too long for a frame continues in further ones,
    of which the last ends the prompt."""
    prompt = _split(submit.prompt_ids, submit.block_hashes)
    emitted: list[worker_pb2.EmittedTokens] = []
    if sum(len(each.token_ids) for each in submit.emitted) > MAX_EMITTED_BYTES:
        emitted.extend(submit.emitted)
        del submit.emitted[:]
        prompt = chain([(b"", b"")], prompt)
    submit.prompt_ids, submit.block_hashes = next(prompt)
    yield worker_pb2.GatewayFrame(submit=submit)
    for each in emitted:
        for ids, _ in _split(each.token_ids, b""):
            piece = worker_pb2.EmittedTokens(choice=each.choice, token_ids=ids)
            part = worker_pb2.PromptPart(handle=submit.handle, emitted=[piece])
            yield worker_pb2.GatewayFrame(prompt_part=part)
    for ids, hashes in prompt:
        part = worker_pb2.PromptPart(handle=submit.handle, prompt_ids=ids, block_hashes=hashes)
        yield worker_pb2.GatewayFrame(prompt_part=part)


def _split(ids: bytes, hashes: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Cut token ids and block hashes into parts that fit in a frame; at least one part."""
    part_bytes = PART_TOKENS * TOKEN_BYTES
    num_parts = max(-(-len(ids) // part_bytes), 1)
    hash_bytes = -(-len(hashes) // HASH_BYTES // num_parts) * HASH_BYTES
    for index in range(num_parts):
        yield (
            ids[index * part_bytes : (index + 1) * part_bytes],
            hashes[index * hash_bytes : (index + 1) * hash_bytes],
        )
