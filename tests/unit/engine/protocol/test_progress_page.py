import mmap
from pathlib import Path

from baton.engine.protocol.progress_page import (
    PAGE_BYTES,
    CoreProgress,
    ProgressPage,
    read_left_page,
)


def make_pages() -> tuple[ProgressPage, ProgressPage]:
    """A writer and a reader of one page."""
    page = mmap.mmap(-1, PAGE_BYTES)
    return ProgressPage(page), ProgressPage(page)


def test_a_fresh_page_is_idle():
    assert make_pages()[1].read() == CoreProgress(0, False, ())


def test_the_reader_sees_the_step_that_runs_and_then_the_idle_core():
    writer, reader = make_pages()
    writer.begin_step(7, ["request-a", "request-b"])
    assert reader.read() == CoreProgress(7, True, ("request-a", "request-b"))
    writer.begin_step(8, ["c"])
    assert reader.read() == CoreProgress(8, True, ("c",))
    writer.end_work()
    assert reader.read() == CoreProgress(8, False, ())


def test_commands_taken_in_are_counted_up():
    writer, reader = make_pages()
    writer.count_commands(3)
    writer.begin_step(1, ["a"])
    writer.count_commands(2)
    writer.end_work()
    assert reader.read().num_commands == 5


def test_request_ids_beyond_the_page_are_left_out_whole():
    writer, reader = make_pages()
    request_ids = [f"{i:099d}" for i in range(1000)]
    writer.begin_step(1, request_ids)
    read = reader.read().request_ids
    assert list(read) == request_ids[: len(read)]
    assert 600 < len(read) < 700


def test_a_page_whose_writer_died_while_writing_can_still_be_read():
    page = mmap.mmap(-1, PAGE_BYTES)
    ProgressPage(page).begin_step(3, ["a"])
    page[0] = 3  # odd: a write has begun
    assert ProgressPage(page).read() == CoreProgress(3, True, ("a",))


def test_the_time_that_a_step_should_take_is_shown():
    writer, reader = make_pages()
    writer.begin_step(1, ["a"], expected_s=0.25)
    assert reader.read().expected_s == 0.25
    writer.begin_step(2, ["a"])
    assert reader.read().expected_s is None


def leave_page(path: Path, request_ids: list[str]) -> None:
    with path.open("w+b") as file:
        file.truncate(PAGE_BYTES)
        with mmap.mmap(file.fileno(), PAGE_BYTES) as page:
            writer = ProgressPage(page)
            writer.begin_step(9, request_ids)
            if not request_ids:
                writer.end_work()


def test_a_page_left_behind_names_the_requests_of_the_last_step(tmp_path: Path):
    leave_page(tmp_path / "page", ["a", "b"])
    assert read_left_page(tmp_path / "page") == ("a", "b")


def test_a_page_left_behind_by_an_idle_core_or_none_at_all_names_nobody(tmp_path: Path):
    leave_page(tmp_path / "page", [])
    assert read_left_page(tmp_path / "page") == ()
    assert read_left_page(tmp_path / "no page") == ()
    (tmp_path / "torn").write_bytes(b"123")
    assert read_left_page(tmp_path / "torn") == ()
