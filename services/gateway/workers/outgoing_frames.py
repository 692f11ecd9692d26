"""Frames for one decode worker that were not written yet.

They are written in this order: cancels, credits (merged into one frame), submits. Knows no stream.
"""

from collections import deque
from collections.abc import Container

from baton.wire.v1 import worker_pb2
from services.gateway.workers.attempt import AttemptKey
from services.gateway.workers.submit_frames import submit_frames


class OutgoingFrames:
    """The queue of one link. `open_handles`: the attempts that can still use credit."""

    def __init__(self, open_handles: Container[int]) -> None:
        self._open_handles = open_handles
        self._cancels: deque[worker_pb2.GatewayFrame] = deque()
        self._credits: dict[tuple[int, int], int] = {}
        # Handle -> frames of a submit that were not written yet.
        self._submits: dict[int, deque[worker_pb2.GatewayFrame]] = {}

    def submit(self, submit: worker_pb2.Submit) -> None:
        self._submits[submit.handle] = deque(submit_frames(submit))

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
        frames = self._submits.get(handle)
        return frames is not None and frames[0].HasField("submit")

    def next_frame(self) -> worker_pb2.GatewayFrame | None:
        """The next frame to write, if there is one."""
        if self._cancels:
            return self._cancels.popleft()
        credits = self._due_credits()
        if credits.handles:
            return worker_pb2.GatewayFrame(credits=credits)
        for handle, frames in self._submits.items():
            frame = frames.popleft()
            if not frames:
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
