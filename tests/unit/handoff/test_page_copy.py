"""The compiled copy beside slices and zlib."""

import mmap
import random
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from baton.handoff import page_copy
from baton.handoff.block_bytes import BlockBytes
from baton.handoff.page_copy import PageAddresses, address_of, copy_pages
from baton.wire.kv_spec import KVSpec
from tests import needs

needs_library = pytest.mark.skipif(
    page_copy.library() is None,
    reason=needs.cpu_with("VPCLMULQDQ") if page_copy.library_path().exists() else needs.COMPILER,
)


@needs_library
@given(
    num_pages=st.integers(1, 6),
    page_bytes=st.integers(1, 9).map(lambda strides: strides * 256),
    gap=st.integers(0, 5).map(lambda lines: lines * 64),
    source_start=st.integers(0, 70),
    checksum=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 1000),
)
@example(num_pages=1, page_bytes=256, gap=0, source_start=0, checksum=0, seed=0)
def test_pages_and_their_checksum_are_those_of_slices_and_zlib(
    num_pages: int, page_bytes: int, gap: int, source_start: int, checksum: int, seed: int
) -> None:
    rng = random.Random(seed)
    source = memoryview(rng.randbytes(source_start + num_pages * page_bytes))
    sources = [source_start + page * page_bytes for page in range(num_pages)]
    target = memoryview(mmap.mmap(-1, num_pages * (page_bytes + gap)))
    targets = [page * (page_bytes + gap) for page in range(num_pages)]
    rng.shuffle(sources)
    wanted, wanted_checksum = bytearray(len(target)), checksum
    for to, start in zip(targets, sources, strict=True):
        wanted[to : to + page_bytes] = source[start : start + page_bytes]
        wanted_checksum = crc32(source[start : start + page_bytes], wanted_checksum)

    copied = copy_pages(
        PageAddresses(target, targets), PageAddresses(source, sources), page_bytes, checksum
    )

    assert copied == wanted_checksum
    assert target == wanted


@needs_library
@pytest.mark.parametrize(("start", "page_bytes"), [(1, 256), (0, 255), (0, 320)])
def test_what_the_library_cannot_do_is_left_undone(start: int, page_bytes: int) -> None:
    target = memoryview(mmap.mmap(-1, 4096))
    source = memoryview(b"x" * 4096)

    assert (
        copy_pages(PageAddresses(target, [start]), PageAddresses(source, [0]), page_bytes, 0)
        is None
    )
    assert not any(target)


@needs_library
@pytest.mark.parametrize(("to", "start"), [(-64, 0), (3904, 0), (0, -1), (0, 3841)])
def test_a_page_that_reaches_out_of_its_memory_is_refused(to: int, start: int) -> None:
    target = memoryview(mmap.mmap(-1, 4096))

    with pytest.raises(ValueError, match="outside 4096"):
        copy_pages(
            PageAddresses(target, [to]), PageAddresses(memoryview(bytes(4096)), [start]), 256, 0
        )


def test_memory_has_one_address_readable_or_writable() -> None:
    memory = memoryview(bytearray(64))

    assert address_of(memory.toreadonly()) == address_of(memory)
    assert address_of(memory[5:]) == address_of(memory) + 5


def test_blocks_are_written_alike_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = KVSpec.of_layers(16, [(2, 8, 8, "float32"), (1, 4, 4, "float32")])
    source = BlockBytes(spec, memoryview(random.Random(1).randbytes(spec.row_bytes * 4)))
    pools = [memoryview(mmap.mmap(-1, spec.row_bytes * 4)) for _ in range(2)]
    checksums = []
    layer_0 = range(1)
    for pool in pools:
        addresses = source.addresses(layer_0, [1, 2, 0])
        checksums.append(BlockBytes(spec, pool).write(layer_0, [3, 0, 2], addresses, checksum=7))
        monkeypatch.setattr(page_copy, "library", lambda: None)

    assert pools[0] == pools[1]
    assert checksums[0] == checksums[1]


def test_without_a_compiler_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = tmp_path / "build" / "pages.so"
    monkeypatch.setattr(page_copy, "library_path", lambda: built)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert page_copy.build() == 1
    assert not built.parent.exists()
