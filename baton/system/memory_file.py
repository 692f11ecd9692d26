"""Anonymous shared memory: a file without a name, mapped by all who hold its descriptor.

It vanishes with its last descriptor and mapping, so that no crash can leak it. Knows nothing of
what lies in it.
"""

import mmap
import os
import sys
import tempfile


def create_memory_file(name: str) -> int:
    """A descriptor of an empty anonymous file. The caller closes it; `name` is for diagnosis."""
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def resize_and_map(fd: int, num_bytes: int) -> mmap.mmap:
    """Give the file its size and map it, shared and writable. Raises OSError without room."""
    os.ftruncate(fd, num_bytes)
    return mmap.mmap(fd, num_bytes)


def map_memory_file(fd: int, num_bytes: int) -> mmap.mmap:
    """Map a file that another process has sized. Raises ValueError when it is smaller."""
    return mmap.mmap(fd, num_bytes)
