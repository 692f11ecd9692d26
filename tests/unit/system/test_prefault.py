"""Memory that is taken before it is needed."""

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest

from baton.system.memory_file import (
    HUGE_PAGE_BYTES,
    create_memory_file,
    resize_and_map,
    resize_and_map_huge,
)
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


def address_of(memory: memoryview | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def huge_pages_kb(address: int) -> int:
    """What of the mapping at this address is read through huge pages."""
    smaps = Path("/proc/self/smaps").read_text()
    [mapping] = re.findall(rf"^{address:x}-.*?^VmFlags", smaps, re.M | re.S)
    return int(re.search(r"ShmemPmdMapped: +(\d+)", mapping)[1])  # type: ignore[index]


def has_huge_pages() -> bool:
    """This kernel gives one to shared memory, when there is one."""
    fd = create_memory_file("probe")
    memory = resize_and_map_huge(fd, HUGE_PAGE_BYTES)
    os.close(fd)
    memory[0] = 1
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(address_of(memory), HUGE_PAGE_BYTES, 25) == 0)


def test_a_pool_is_of_huge_pages_where_the_kernel_has_them() -> None:
    num_bytes = 3 * HUGE_PAGE_BYTES + 4096
    fd = create_memory_file("pool")
    memory = resize_and_map_huge(fd, num_bytes)
    assert (memory.nbytes, memory.format, memory.readonly) == (num_bytes, "B", False)
    assert address_of(memory) % HUGE_PAGE_BYTES == 0
    memory[HUGE_PAGE_BYTES] = 7
    thread = prefault(memory)
    assert thread is not None
    thread.join(60)
    assert num_bytes_taken(fd) == num_bytes
    assert os.pread(fd, 2, HUGE_PAGE_BYTES) == b"\x07\x00"
    assert bool(huge_pages_kb(address_of(memory))) == has_huge_pages()
    os.close(fd)


def test_memory_that_cannot_be_mapped_is_an_error() -> None:
    fd = create_memory_file("pool")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        resize_and_map_huge(fd, 2**47)
    os.close(fd)
