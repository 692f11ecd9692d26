"""A descriptor handed over through a folder, with real sockets."""

import os
from pathlib import Path

import pytest

from baton.handoff.transports.rendezvous import Rendezvous, RendezvousFailed, hand_over
from baton.system.memory_file import (
    NotSealed,
    create_memory_file,
    map_memory_file,
    map_sealed,
    open_sealed,
    resize_and_map,
)
from tests import needs

pytestmark = needs.linux

NONCE = "5a" * 16


def test_a_file_is_handed_over_with_its_message(tmp_path: Path) -> None:
    fd = create_memory_file("given")
    os.write(fd, b"pages")
    rendezvous = Rendezvous(tmp_path, NONCE)

    hand_over(tmp_path, NONCE, b"prefill-1", fd)
    os.close(fd)
    message, received = rendezvous.receive()
    rendezvous.close()

    assert message == b"prefill-1"
    assert os.pread(received, 9, 0) == b"pages"
    assert not os.get_inheritable(received)
    assert not list(tmp_path.iterdir())
    os.close(received)


def test_a_folder_with_a_path_too_long_for_sockets_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 150)
    folder.mkdir()
    rendezvous = Rendezvous(folder, NONCE)

    hand_over(folder, NONCE, b"", 0)

    os.close(rendezvous.receive()[1])
    rendezvous.close()


def test_only_the_owner_may_come(tmp_path: Path) -> None:
    rendezvous = Rendezvous(tmp_path, NONCE)

    assert (tmp_path / NONCE).stat().st_mode & 0o777 == 0o600
    rendezvous.close()


def test_nobody_in_another_folder_finds_the_socket(tmp_path: Path) -> None:
    rendezvous = Rendezvous(tmp_path, NONCE)
    other = tmp_path / "other"
    other.mkdir()

    with pytest.raises(FileNotFoundError):
        hand_over(other, NONCE, b"", 0)
    with pytest.raises(RendezvousFailed, match="nobody came"):
        rendezvous.receive()
    rendezvous.close()


@pytest.mark.parametrize("nonce", ["../../etc/socket", "", "x" * 32, NONCE + "0"])
def test_a_nonce_never_leads_out_of_the_folder(tmp_path: Path, nonce: str) -> None:
    with pytest.raises(ValueError, match="nonce"):
        hand_over(tmp_path, nonce, b"", 0)


def test_a_sealed_file_keeps_its_size_and_cannot_be_written_through_its_copy() -> None:
    fd = create_memory_file("pool")
    pool = resize_and_map(fd, 8192)
    copy = open_sealed(fd)
    assert copy is not None

    for size in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.truncate(fd, size)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(copy, b"x")
    mapped = map_sealed(copy)
    pool[4096:4101] = b"fresh"
    assert mapped[4096:4101] == b"fresh"
    with pytest.raises(TypeError):
        mapped[0:1] = b"x"
    os.close(fd)
    os.close(copy)


def test_a_reader_that_opens_a_sealed_file_anew_cannot_write_it_either() -> None:
    fd = create_memory_file("pool")
    pool = resize_and_map(fd, 4096)
    pool[:4] = b"ours"
    copy = open_sealed(fd)
    assert copy is not None

    writable = os.open(f"/proc/self/fd/{copy}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(writable, b"evil", 0)
    with pytest.raises(PermissionError):
        map_memory_file(writable, 4096)

    assert pool[:4] == b"ours"
    for each in (fd, copy, writable):
        os.close(each)


def test_a_file_that_may_shrink_is_not_mapped(tmp_path: Path) -> None:
    fd = create_memory_file("pool")
    os.truncate(fd, 4096)
    with pytest.raises(NotSealed):
        map_sealed(fd)
    os.close(fd)

    with (tmp_path / "plain").open("wb+") as file, pytest.raises((NotSealed, OSError)):
        file.truncate(4096)
        map_sealed(file.fileno())
