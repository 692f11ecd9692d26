import pytest

from baton.system.byte_size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MiB", 512 * 2**20),
        ("2Gi", 2 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("3g", 3 * 10**9),
        (" 1TiB ", 2**40),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1iB", "GiB", "1.GiB", "\u00b2GiB", "1PiB"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 512MiB or 2GiB"):
        parse_bytes(text)


def test_sizes_are_shown_with_three_digits() -> None:
    shown = [format_bytes(size) for size in (12_000, 512 * 2**20, 9 * 2**28, 20 * 2**30)]
    assert shown == ["0.0114 MiB", "512 MiB", "2.25 GiB", "20.0 GiB"]
