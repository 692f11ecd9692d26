"""Copies between host and device beside the stream that computes, so that neither waits for them.

Copies begin in the order in which they are asked for, and end in it. Knows nothing of blocks.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

# (target, source), of equal shape; what lies in host memory is page-locked.
Pair = tuple[torch.Tensor, torch.Tensor]


class Copy(Protocol):
    """Some copies that were begun together; their tensors stay as they are until it has ended."""

    def has_ended(self) -> bool:
        """Never waits."""

    def wait(self) -> None:
        """Wait until it has ended; the computing stream goes on."""


class SideStream(Protocol):
    """One for each device and owner."""

    def begin(self, pairs: Sequence[Pair]) -> Copy:
        """Copy when all is done that the computing stream has been given so far."""

    def hold_back(self, copy: Copy) -> None:
        """Let the computing stream's further work begin after `copy`; returns at once."""


class HostStream:
    """The stream of a device that is the host: a copy has ended when it was begun."""

    def begin(self, pairs: Sequence[Pair]) -> Copy:
        for target, source in pairs:
            target.copy_(source)
        return _Ended()

    def hold_back(self, copy: Copy) -> None:
        """There is nothing that it could overtake."""


class _Ended:
    def has_ended(self) -> bool:
        return True

    def wait(self) -> None:
        """It has ended."""


class CudaStream:
    """A CUDA stream of its own; the computing stream is whichever is current at each call."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, pairs: Sequence[Pair]) -> Copy:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            event.record(self._stream)
        return _CudaCopy(event)

    def hold_back(self, copy: Copy) -> None:
        assert isinstance(copy, _CudaCopy)
        torch.cuda.current_stream(self._stream.device).wait_event(copy.event)


class _CudaCopy:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def has_ended(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


def side_stream(device: torch.device) -> SideStream:
    """The one for a device of that kind."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
