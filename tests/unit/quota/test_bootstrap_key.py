from pathlib import Path

import pytest

from baton.wire.key_registry import RegistryError, key_digest
from services.quota.bootstrap_key import read_bootstrap_key
from services.quota.settings import Settings

SECRET = bytes(range(32))
KEY = "bt-" + "x" * 43


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "server-secret"
    file.write_text(SECRET.hex())
    return file


def test_key_of_a_file_has_the_digest_that_gateways_send(tmp_path: Path, secret_file: Path) -> None:
    key_file = tmp_path / "api-key"
    key_file.write_text(KEY + "\n")
    (record,) = read_bootstrap_key(key_file, secret_file).keys.values()
    assert record.digest == key_digest(SECRET, KEY).hex()
    assert record.tenant == "bootstrap"
    assert read_bootstrap_key(key_file, secret_file).keys == {record.key_id: record}


@pytest.mark.parametrize("content", ["", "short", "bt-" + "\u00e9" * 43])
def test_unfit_key_is_refused_without_being_shown(
    tmp_path: Path, secret_file: Path, content: str
) -> None:
    key_file = tmp_path / "api-key"
    key_file.write_text(content)
    with pytest.raises(RegistryError) as refused:
        read_bootstrap_key(key_file, secret_file)
    assert str(key_file) in str(refused.value)
    assert not content or content not in str(refused.value)


def test_bootstrap_key_needs_its_secret() -> None:
    with pytest.raises(ValueError, match="bootstrap_key_file"):
        Settings(bootstrap_key_file=Path("k"))
