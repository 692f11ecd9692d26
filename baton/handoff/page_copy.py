"""The compiled copy of pages (`csrc/pages.cpp`); what it cannot do is left to Python.

`python -m baton.handoff.page_copy` compiles it, in a second, if there is a compiler. The library's
name carries a digest of its source, so that one of another source is never loaded. Knows no blocks.
"""

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from baton.system.compiler import built_file, find_compiler

_SOURCE = Path(__file__).parent / "csrc" / "pages.cpp"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall")
_ALL_ONES = 0xFFFFFFFF
# What is left of pages that were folded.
_LEFT_BYTES = 256


def library_path() -> Path:
    """Where the library of the present source is, or will be once it is built."""
    digest = hashlib.sha256(platform.machine().encode() + _SOURCE.read_bytes()).hexdigest()
    return built_file(_SOURCE.parent, f"pages-{digest[:16]}.so")


@cache
def library() -> ctypes.CDLL | None:
    """The library, loaded once; None when it is not built or has no use for this machine."""
    try:
        loaded = ctypes.CDLL(str(library_path()))
    except OSError:
        return None
    numbers, size = ctypes.c_void_p, ctypes.c_size_t
    loaded.baton_copy_pages.argtypes = (
        *(numbers, numbers, numbers, numbers, size, size),
        *(ctypes.c_uint32, ctypes.c_char_p),
    )
    return loaded if loaded.baton_can_copy_pages() else None


def address_of(memory: memoryview) -> int:
    """Where it begins; it may be read-only. Valid as long as `memory` is held."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


class PageAddresses(NamedTuple):
    """Where pages begin, in bytes from the beginning of a memory."""

    memory: memoryview
    starts: Sequence[int]


def copy_pages(
    target: PageAddresses, source: PageAddresses, page_bytes: int, checksum: int
) -> int | None:
    """Copy each page to its target; the CRC-32 of what was stored, going on from `checksum`.

    None: nothing was done, as there is no library or it cannot.

    The interpreter runs on meanwhile. Raises ValueError when a page reaches out of its memory.
    """
    loaded = library()
    if loaded is None:
        return None
    for memory, starts in (target, source):
        if min(starts) < 0 or max(starts) + page_bytes > len(memory):
            raise ValueError(f"a page of {page_bytes} bytes outside {len(memory)}")
    to, begin = array("Q", target.starts), array("Q", source.starts)
    assert len(to) == len(begin), "one target per page"
    left = ctypes.create_string_buffer(_LEFT_BYTES)
    is_done = loaded.baton_copy_pages(
        *(address_of(target.memory), to.buffer_info()[0]),
        *(address_of(source.memory), begin.buffer_info()[0]),
        *(len(to), page_bytes, checksum ^ _ALL_ONES, left),
    )
    return crc32(left.raw, _ALL_ONES) if is_done else None


def build() -> int:
    """Compile what is missing and remove older ones. Returns the exit code."""
    target = library_path()
    if target.exists():
        return 0
    compiler = find_compiler()
    if compiler is None:
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    if subprocess.run([*compiler, *_FLAGS, str(_SOURCE), "-o", str(made)], check=False).returncode:
        print("The copy of KV pages was not compiled; Python does it.", file=sys.stderr)
        return 1
    made.replace(target)
    for other in target.parent.glob("pages-*.so"):
        if other != target:
            other.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(build())
