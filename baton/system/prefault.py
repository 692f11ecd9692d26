"""Takes memory from the system before it is needed, in a thread of the lowest priority.

The first write to a page of fresh memory costs a page fault and the zeroing of the page, up to half
of a prefill's time until every page of a large pool was used once. Ahead of time it costs only idle
CPU time. Needs Linux 5.14; elsewhere nothing happens.

Linux 6.1 can be asked for huge pages too, whatever the system's settings for shared memory are
(decision 0099): attention reads a pool of them up to several times as fast.
"""

import ctypes
import mmap
import os
import sys
import threading

from baton.system.memory_file import HUGE_PAGE_BYTES

# linux/mman.h
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25


def prefault(memory: memoryview) -> threading.Thread | None:
    """Start to take all pages of a writable mapping, which the thread keeps mapped.

    Returns None where the system cannot.
    """
    if sys.platform != "linux":
        return None
    thread = threading.Thread(target=_populate, args=(memory,), name="prefault", daemon=True)
    thread.start()
    return thread


def _populate(memory: memoryview) -> None:
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    # Unlike mmap.madvise, a call through ctypes lets other threads run Python.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # One call blocks other threads that map or unmap memory.
    for start in range(0, memory.nbytes, HUGE_PAGE_BYTES):
        piece, size = address + start, min(HUGE_PAGE_BYTES, memory.nbytes - start)
        # A huge page takes the place of small ones: there has to be one.
        madvise(piece, min(size, mmap.PAGESIZE), _MADV_POPULATE_WRITE)
        if madvise(piece, size, _MADV_COLLAPSE) and madvise(piece, size, _MADV_POPULATE_WRITE):
            return  # an older kernel, or no memory left: pages come with their first write
