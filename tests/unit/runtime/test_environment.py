from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from baton.runtime.environment import SettingsError, load, parse, to_environment


@dataclass(frozen=True)
class Settings:
    listen: str
    wait_s: float = 1.5
    workers: tuple[str, ...] = ()
    folder: Path | None = None
    enabled: bool = False
    mode: Literal["auto", "always"] = "always"


def test_fields_are_read_with_their_types() -> None:
    settings = parse(
        Settings,
        "T_",
        {
            "T_LISTEN": ":1",
            "T_WAIT_S": "2",
            "T_WORKERS": "a, b",
            "T_FOLDER": "/x",
            "T_ENABLED": "yes",
            "OTHER": "ignored",
        },
    )
    assert settings == Settings(":1", 2.0, ("a", "b"), Path("/x"), True)
    assert parse(Settings, "T_", to_environment(settings, "T_")) == settings


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "T_LISTEN"),
        ({"T_LISTEN": "x", "T_LISTNE": "y"}, "T_LISTNE"),
        ({"T_LISTEN": "x", "T_WAIT_S": "soon"}, "T_WAIT_S"),
        ({"T_LISTEN": "x", "T_ENABLED": "maybe"}, "T_ENABLED"),
        ({"T_LISTEN": "x", "T_MODE": "never"}, "T_MODE"),
    ],
)
def test_missing_unknown_and_malformed_variables_are_named(
    environment: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        parse(Settings, "T_", environment)


def test_load_exits_with_status_2(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("T_LISTNE", "x")
    with pytest.raises(SystemExit) as exit_info:
        load(Settings, "T_")
    assert exit_info.value.code == 2
    assert "T_LISTNE" in capsys.readouterr().err
