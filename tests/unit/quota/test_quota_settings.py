from pathlib import Path
from typing import Any

import pytest

from services.quota.settings import Settings


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"redis_url": "redis://:secret@redis:6379/0"}, "must not hold a password"),
        ({"redis_username": "quota"}, "needs redis_password_file"),
        ({"redis_sentinel_password_file": Path("s")}, "is for redis\\+sentinel://"),
    ],
)
def test_a_password_comes_from_a_file_only(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings(**options)
    Settings(redis_username="quota", redis_password_file=Path("p"))
    url = "rediss+sentinel://sentinel/mymaster/0"
    Settings(redis_url=url, redis_sentinel_password_file=Path("s"))


def test_the_admin_api_needs_a_token_a_home_and_the_server_secret() -> None:
    with pytest.raises(ValueError, match="go together"):
        Settings(api_listen="127.0.0.1:8081")
    with pytest.raises(ValueError, match="go together"):
        Settings(api_token_file=Path("t"))
    with pytest.raises(ValueError, match="needs registry_file and secret_file"):
        Settings(api_listen="127.0.0.1:8081", api_token_file=Path("t"))
