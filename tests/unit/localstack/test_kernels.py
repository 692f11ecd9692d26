"""Kernels that are missing are built before the stack starts, once."""

from baton.localstack import kernels


def test_a_missing_library_is_built_once_and_its_build_heard(tmp_path, monkeypatch):
    built = tmp_path / "kernels.so"
    program = f"import pathlib; print('building'); pathlib.Path({str(built)!r}).touch()"
    (tmp_path / "builder.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(kernels, "_libraries", lambda: [("builder", built)])
    said: list[str] = []
    kernels.build_missing(said.append)
    kernels.build_missing(said.append)
    assert said == ["building"]


def test_a_build_that_fails_is_heard_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_libraries", lambda: [("nosuchbuilder", tmp_path / "x.so")])
    said: list[str] = []
    kernels.build_missing(said.append)
    assert "nosuchbuilder" in said[-1]
