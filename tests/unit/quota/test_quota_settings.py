from pathlib import Path

import pytest

from services.quota.settings import Settings


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"redis_url": "redis://:secret@redis:6379/0"}, "must not hold a password"),
        ({"redis_username": "quota"}, "needs redis_password_file"),
    ],
)
def test_a_password_comes_from_a_file_only(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings(**options)
    Settings(redis_username="quota", redis_password_file=Path("p"))
