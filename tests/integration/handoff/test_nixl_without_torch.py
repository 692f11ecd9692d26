"""NIXL's package names torch as what it needs; an environment of vLLM's fronts has none."""

import subprocess
import sys
from pathlib import Path

from tests import needs

PROGRAM = """
import sys, time
sys.modules["torch"] = None  # an import of it fails
from baton.handoff.transports.nixl_agent import NixlAgent, address_of

sent, got = memoryview(bytearray(b"x" * 4096)), memoryview(bytearray(4096))
sender, receiver = NixlAgent("sender", is_read=True), NixlAgent("receiver", is_read=False)
sender.register(address_of(sent), 4096)
receiver.register(address_of(got), 4096)
peer = receiver.add_peer(sender.metadata())
read = receiver.start_read(peer, [(address_of(sent), 4096)], address_of(got))
while not receiver.has_ended(read):
    time.sleep(0.001)
assert got == sent
receiver.release(read)
"""


@needs.nixl
def test_memory_of_a_host_is_read_without_torch() -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[3], check=True, timeout=200
    )
