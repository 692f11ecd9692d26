import pytest

from baton.cli.key_homes import LocalKeys
from baton.cli.keys import create_key, parse_budget
from baton.localstack.home import Home
from baton.wire import key_registry
from baton.wire.key_limits import KeyLimits
from baton.wire.key_registry import RegistryError


@pytest.mark.parametrize(
    ("text", "expected"), [("", (0, "")), ("5000/day", (5000, "day")), ("1/month", (1, "month"))]
)
def test_budgets_are_tokens_per_utc_window(text: str, expected: tuple[int, str]) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize("text", ["5000", "x/day", "5/week", "0/day", "-1/day"])
def test_a_malformed_budget_is_named(text: str) -> None:
    with pytest.raises(RegistryError, match=text):
        parse_budget(text)


def test_a_key_is_returned_once_and_only_its_digest_is_kept(tmp_path) -> None:
    home = Home(tmp_path)
    api_key = create_key(LocalKeys(home), "acme", KeyLimits(requests_per_minute=3))
    assert api_key.startswith("bt-")
    kept = home.registry.read_text()
    assert api_key not in kept
    (record,) = key_registry.read(home.registry).keys.values()
    secret = key_registry.read_secret(home.secret)
    assert record.digest == key_registry.key_digest(secret, api_key).hex()
    assert record.limits.requests_per_minute == 3
