"""A core with vLLM on CPUs that copies as one on a GPU does: through slots, and beside its steps.

Its copies out of the cache come as late as a device's may: a row of the ring is filled only when
somebody has asked several times whether the copy has ended. No product code knows it.
"""

import os
import sys

from baton.engines.vllm import core_main
from baton.engines.vllm.ranks import pages
from tests.model.gpu.late_stream import LateCopy, LateStream

NUM_POLLS = 3


class PolledCopy(LateCopy):
    """Ends by itself, after it was asked for often enough."""

    num_polls = 0

    def has_ended(self) -> bool:
        self.num_polls += 1
        if self.num_polls > NUM_POLLS:
            self.stream.run_until(self)
        return self.is_done


def main() -> int:
    """As `core_main.main`, with late copies in every rank: they are forked."""
    begin = pages.RankPages.__init__

    def begin_late(self: pages.RankPages, blocks: pages.RankBlocks, heads: pages.Heads) -> None:
        begin(self, blocks, heads, LateStream(PolledCopy))

    pages.RankPages.__init__ = begin_late  # type: ignore[assignment]
    return core_main.main(sys.argv[1:])


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)
