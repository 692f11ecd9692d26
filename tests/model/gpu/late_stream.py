"""A scripted stream beside the computing one, whose copies are as late as a device's may be."""

from collections.abc import Sequence

from baton.model.tensors.side_stream import Pair


class LateCopy:
    def __init__(self, stream: "LateStream", pairs: Sequence[Pair]) -> None:
        self.stream, self.pairs, self.is_done = stream, pairs, False

    def has_ended(self) -> bool:
        return self.is_done

    def wait(self) -> None:
        self.stream.num_waits += 1
        self.stream.run_until(self)


class LateStream:
    """Copies in order, each no earlier than somebody must have it: what the device may do."""

    def __init__(self, kind: type[LateCopy] = LateCopy) -> None:
        self.copies: list[LateCopy] = []
        self.num_waits = 0
        self._kind = kind

    def begin(self, pairs: Sequence[Pair]) -> LateCopy:
        self.copies.append(self._kind(self, pairs))
        return self.copies[-1]

    def hold_back(self, copy: LateCopy) -> None:
        self.run_until(copy)

    def run_until(self, copy: LateCopy) -> None:
        while not copy.is_done:
            self.run_one()

    def run_one(self) -> None:
        oldest = self.copies.pop(0)
        for target, source in oldest.pairs:
            target.copy_(source)
        oldest.is_done = True
