"""Memory that is taken before it is needed."""

import os

from baton.system.memory_file import create_memory_file, resize_and_map
from baton.system.prefault import prefault
from tests import needs

pytestmark = needs.linux

NUM_BYTES = 5 * 1024 * 1024 + 4096


def num_bytes_taken(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_all_pages_are_there_before_anybody_writes() -> None:
    fd = create_memory_file("prefault")
    memory = resize_and_map(fd, NUM_BYTES)
    assert num_bytes_taken(fd) == 0
    thread = prefault(memoryview(memory))
    assert thread is not None
    thread.join(60)
    assert num_bytes_taken(fd) == NUM_BYTES
    os.close(fd)


def test_what_was_written_before_stays() -> None:
    fd = create_memory_file("prefault")
    memory = resize_and_map(fd, NUM_BYTES)
    memory[4096:4100] = b"kept"
    thread = prefault(memoryview(memory))
    assert thread is not None
    thread.join(60)
    assert memory[4096:4100] == b"kept"
    os.close(fd)
