"""Settings of the store that cannot be meant are refused at the start."""

from pathlib import Path
from typing import Any

import pytest

from services.gateway.settings import GatewaySettings

PEERS: dict[str, Any] = {"quota": ("q:1",), "tokenizer": ("t:1",), "router": ("r:1",)}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"store_url": "redis://:secret@redis:6379/0"}, "store_password_file"),
        ({"store_username": "baton"}, "store_password_file"),
        ({"store_sentinel_password_file": Path("s")}, "is for redis\\+sentinel://"),
        ({"store_ttl_s": 0.0}, "store_ttl_s"),
        ({"store_timeout_s": 0.0}, "store_timeout_s"),
        ({"store_objects_of_tenant": 0}, "store_objects_of_tenant"),
        ({"store_bytes_of_tenant": 1000}, "store_bytes_of_tenant"),
        ({"batch_concurrency": 0}, "batch_concurrency"),
        ({"batch_file_bytes": 2, "batch_bytes_of_tenant": 1}, "batch_bytes_of_tenant"),
        ({"batch_bytes_of_tenant": 2**30}, "batch_bytes_of_tenant"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        GatewaySettings(**PEERS, secret_file=Path("secret"), **fields)


def test_a_gateway_keeps_nothing_unless_it_is_told_where() -> None:
    assert GatewaySettings(**PEERS, secret_file=Path("secret")).store_url == ""
