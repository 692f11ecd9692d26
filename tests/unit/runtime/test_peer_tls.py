from pathlib import Path

import pytest

from baton.runtime import peer_tls
from baton.runtime.environment import SettingsError, parse
from baton.runtime.peer_tls import PREFIX, PeerTls, Settings

FILES = {"BATON_TLS_CERT_FILE": "c", "BATON_TLS_KEY_FILE": "k", "BATON_TLS_CA_FILE": "a"}


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"BATON_TLS_CERT_FILE": "c"}, "go together"),
        ({"BATON_TLS_CERTIFICATE": "c"}, "unknown setting"),
        ({**FILES, "BATON_TLS_PLAINTEXT": "1"}, "plaintext is set, and so are"),
        ({**FILES, "BATON_TLS_PEER_NAME": ""}, "peer_name must not be empty"),
    ],
)
def test_half_an_identity_is_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse(Settings, PREFIX, environment)


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        ("127.0.0.1:0", True),
        ("127.9.9.9:80", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("unix:/run/baton.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.1:80", False),
        ("router:80", False),
        (":80", False),
    ],
)
def test_local_is_what_no_other_machine_reaches(listen: str, local: bool) -> None:
    assert peer_tls.is_local(listen) is local


def test_an_address_of_other_machines_needs_certificates_or_a_word(monkeypatch) -> None:
    peer_tls.check_listen("127.0.0.1:0")
    with pytest.raises(SettingsError, match=r"0\.0\.0\.0:80 is reached from other machines"):
        peer_tls.check_listen("0.0.0.0:80")
    monkeypatch.setenv("BATON_TLS_PLAINTEXT", "1")
    peer_tls.check_listen("0.0.0.0:80")


def test_files_that_are_absent_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"BATON_TLS_.*nothing"):
        PeerTls((tmp_path / "nothing", tmp_path / "k", tmp_path / "a"), "baton")
