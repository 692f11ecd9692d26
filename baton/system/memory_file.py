"""Anonymous shared memory: a file without a name, mapped by all processes with its descriptor.

It vanishes with its last descriptor and mapping, so that no crash can leak it. On Linux it can be
sealed. Then a reader need not trust the process that made it: a file that shrinks under a mapping
kills its reader. Nor need the maker trust a reader, which could open a descriptor that can only be
read once more for writing. Knows nothing of the content.
"""

import ctypes
import errno
import mmap
import os
import sys
import tempfile

if sys.platform == "linux":
    import fcntl

    _FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    # F_SEAL_FUTURE_WRITE, since Linux 5.1: what is mapped already stays writable, nothing else is.
    _FUTURE_WRITE = 0x0010

HUGE_PAGE_BYTES = 2 * 2**20
_MAP_FIXED = 0x10  # of mmap(2)
_WRITABLE = 0x200  # PyBUF_WRITE


class NotSealed(Exception):
    """The size of the file could change while it is mapped."""


def create_memory_file(name: str) -> int:
    """Create an empty anonymous file. The caller closes its descriptor; `name` is for diagnosis."""
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def resize_and_map(fd: int, num_bytes: int) -> mmap.mmap:
    """Size the file and map it, shared and writable. Raises OSError when memory is short."""
    os.ftruncate(fd, num_bytes)
    return mmap.mmap(fd, num_bytes)


def resize_and_map_huge(fd: int, num_bytes: int) -> memoryview:
    """As `resize_and_map`, where huge pages can be had (`prefault`), and for the process's life.

    A huge page of a file lies at a multiple of its size in memory as in the file; mmap.mmap takes
    no address. Raises OSError.
    """
    os.ftruncate(fd, num_bytes)
    if sys.platform != "linux" or num_bytes < HUGE_PAGE_BYTES:
        return memoryview(mmap.mmap(fd, num_bytes))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]

    def map_at(address: int | None, size: int, protection: int, flags: int, file: int) -> int:
        mapped: int = libc.mmap(address, size, protection, flags, file, 0)
        if mapped == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return mapped

    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = map_at(None, num_bytes + HUGE_PAGE_BYTES, 0, reserved, -1)
    address += -address % HUGE_PAGE_BYTES
    access = mmap.PROT_READ | mmap.PROT_WRITE
    map_at(address, num_bytes, access, mmap.MAP_SHARED | _MAP_FIXED, fd)
    # Its items are bytes; those of an array of ctypes are not.
    view = ctypes.pythonapi.PyMemoryView_FromMemory
    view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
    view.restype = ctypes.py_object
    memory: memoryview = view(address, num_bytes, _WRITABLE)
    return memory


def map_memory_file(fd: int, num_bytes: int) -> mmap.mmap:
    """Map a file that another process has sized. Raises ValueError when it is smaller."""
    return mmap.mmap(fd, num_bytes)


def open_sealed(fd: int) -> int | None:
    """Fix the file's size for good, end all writes but through mappings of now, open it read-only.

    The caller owns the new descriptor. Returns None where the system has no such files.
    """
    if sys.platform != "linux":
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FIXED_SIZE | _FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # an older kernel
        raise
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def map_sealed(fd: int) -> mmap.mmap:
    """Map all of another process's file, read-only. Raises NotSealed, OSError, ValueError."""
    if sys.platform != "linux" or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _FIXED_SIZE != _FIXED_SIZE:
        raise NotSealed("the file's size is not sealed")
    return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
