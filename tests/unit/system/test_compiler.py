"""Where compiled libraries are put. Root may write everywhere, so the rights are said by a fake."""

import os
from pathlib import Path

from baton.system.compiler import built_file


def test_a_library_stands_beside_its_sources_where_they_are_ours(tmp_path):
    assert built_file(tmp_path, "x.so") == tmp_path / "build" / "x.so"


def test_the_library_of_somebody_elses_package_is_built_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert built_file(tmp_path, "x.so") == Path("/somewhere/baton/build/x.so")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert built_file(tmp_path, "x.so") == Path("/home/me/.cache/baton/build/x.so")


def test_a_library_that_is_there_is_used_though_nothing_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "x.so").touch()
    assert built_file(tmp_path, "x.so") == tmp_path / "build" / "x.so"
