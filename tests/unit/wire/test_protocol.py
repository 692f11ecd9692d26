"""The version of the protocol that two processes agree on."""

import pytest

from baton.wire import protocol
from baton.wire.failures import Incompatible


def test_a_newer_peer_is_spoken_to_in_our_newest_version() -> None:
    newest = protocol.PROTOCOL_VERSION
    assert protocol.agree(newest + 5, peer="worker-9", own="gateway-1") == newest


def test_an_older_peer_is_spoken_to_in_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL_VERSION", 4)
    monkeypatch.setattr(protocol, "OLDEST_PROTOCOL_VERSION", 3)
    assert protocol.agree(3, peer="worker-9", own="gateway-1") == 3


def test_a_peer_older_than_all_we_speak_is_refused_naming_both() -> None:
    with pytest.raises(Incompatible) as caught:
        protocol.agree(0, peer="worker-9", own="gateway-1")
    for name in ("worker-9", "gateway-1", "protocol 0"):
        assert name in caught.value.message
