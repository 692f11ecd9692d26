import pytest

from baton.system.allocator import keep_freed_memory
from tests import needs


@needs.linux
def test_glibc_takes_the_setting() -> None:
    assert keep_freed_memory(64 * 2**20)


def test_where_there_is_no_such_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())

    assert not keep_freed_memory(64 * 2**20)
