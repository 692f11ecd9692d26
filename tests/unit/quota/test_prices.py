"""The price list: strict reading, exact amounts, new prices while requests run."""

import json
from pathlib import Path

import pytest

from services.quota.prices import PriceError, PriceList, Prices, parse_prices, units

LARGE = {"prompt": "2.5", "cached": "1.25", "output": "10"}


def price_list(version="v1", **models) -> str:
    return json.dumps({"version": version, "currency": "USD", "models": models})


def write(folder: Path, text: str) -> Path:
    file = folder / "prices.json"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("amount", "expected"), [("0.000001", 1), ("2.5", 2_500_000), ("999.999999", 999_999_999)]
)
def test_amounts_are_exact_to_the_sixth_decimal(amount, expected):
    assert units(amount) == expected


def test_a_price_is_three_integers_and_the_version():
    prices = parse_prices(price_list(large=LARGE, plain={"prompt": "1", "output": "2"}), "file")
    assert prices.text_of("large") == "2500000 1250000 10000000 v1"
    assert prices.text_of("plain") == "1000000 1000000 2000000 v1"
    assert prices.text_of("other") == ""


@pytest.mark.parametrize(
    "text",
    [
        "nonsense", "[]", "{}", price_list(m={"prompt": 2.5, "output": "1"}),
        price_list(m={"prompt": "1"}), price_list(m=LARGE | {"audio": "1"}),
        price_list(m={"prompt": "-1", "output": "1"}),
        price_list(m={"prompt": "1e3", "output": "1"}),
        price_list(m={"prompt": "0.0000001", "output": "1"}),
        price_list(m={"prompt": "1", "cached": "2", "output": "1"}),
        price_list(**{"a b": LARGE}), price_list("two words", m=LARGE),
        '{"version": "1", "currency": "USD", "models": {"m": {"prompt": "1", "output": "1"}, '
        '"m": {"prompt": "2", "output": "1"}}}',
    ],
)  # fmt: skip
def test_a_price_list_that_could_be_misread_is_refused(text):
    with pytest.raises(PriceError, match="file"):
        parse_prices(text, "file")


def test_without_a_price_list_everything_is_free():
    assert Prices().text_of("any") == "0 0 0 "


def test_a_model_without_a_price_is_free_and_the_log_says_so_once(tmp_path, caplog):
    prices = Prices(write(tmp_path, price_list(large=LARGE)))
    assert [prices.text_of("other"), prices.text_of("other")] == ["0 0 0 v1"] * 2
    assert [record.message for record in caplog.records].count("model_without_price") == 1


async def test_a_new_price_list_counts_from_the_next_request_on(tmp_path):
    file = write(tmp_path, price_list(large=LARGE))
    prices = Prices(file)
    file.write_text(price_list("v2", large=LARGE | {"output": "20"}))
    await prices.refresh()
    assert prices.text_of("large") == "2500000 1250000 20000000 v2"


@pytest.mark.parametrize("text", ["nonsense", price_list(large=LARGE | {"output": "20"})])
async def test_a_price_list_that_cannot_be_used_leaves_the_earlier_one(tmp_path, text):
    file = write(tmp_path, price_list(large=LARGE))
    prices = Prices(file)
    file.write_text(text)
    await prices.refresh()
    assert prices.text_of("large") == "2500000 1250000 10000000 v1"


def test_a_price_list_that_is_not_there_stops_the_start(tmp_path):
    with pytest.raises(PriceError, match="none"):
        Prices(tmp_path / "none")


def test_a_price_list_says_in_which_currency():
    assert isinstance(parse_prices(price_list(), "file"), PriceList)
