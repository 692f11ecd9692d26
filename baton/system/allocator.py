"""The C library's allocator: how much freed memory it keeps for reuse.

By default glibc returns large pieces to the kernel at every free, and takes them again, page by
page and zeroed, at the next use. Processes that handle message after message of 1 MiB spend more
time on that than on the bytes. With another C library nothing happens.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The largest value that glibc accepts for _MMAP_THRESHOLD.
_MAX_MMAP_THRESHOLD = 32 * 2**20


def keep_freed_memory(max_bytes: int) -> bool:
    """Keep up to `max_bytes` freed bytes of each arena for reuse.

    Returns False where the allocator has no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    is_set = mallopt(_MMAP_THRESHOLD, min(max_bytes, _MAX_MMAP_THRESHOLD))
    return bool(is_set and mallopt(_TRIM_THRESHOLD, max_bytes))
