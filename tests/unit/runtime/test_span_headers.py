from pathlib import Path

import pytest

from baton.runtime.environment import SettingsError
from baton.runtime.otlp.span_headers import FILE, VARIABLE, envoy_variables, span_headers


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("", {}),
        ("x-token=abc", {"x-token": "abc"}),
        (" Authorization = Bearer%20a%3Db%2Cc , x-team=a=b,", {
            "authorization": "Bearer a=b,c", "x-team": "a=b",
        }),
        ("authorization=Bearer abc", {"authorization": "Bearer abc"}),
    ],
)  # fmt: skip
def test_headers_are_read_as_opentelemetry_says(text: str, headers: dict[str, str]) -> None:
    assert span_headers({VARIABLE: text}) == headers


def test_without_the_variable_there_are_none() -> None:
    assert span_headers({}) == {}


@pytest.mark.parametrize(
    "text", ["hunter2", "x-token=a,hunter2", "x y=hunter2", "x=hunter2%0ax", "x-bin=hunter2"]
)
def test_what_is_refused_is_not_repeated(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        span_headers({VARIABLE: text})
    assert VARIABLE in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_headers_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("x-token=abc\n")
    assert span_headers({FILE: str(file)}) == {"x-token": "abc"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{FILE}: .*headers: No such file"):
        span_headers({FILE: str(tmp_path / "headers")})
    (tmp_path / "headers").write_bytes(b"x=hunter2\xff")
    with pytest.raises(SettingsError, match="headers: not UTF-8"):
        span_headers({FILE: str(tmp_path / "headers")})


def test_headers_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is set, too"):
        span_headers({FILE: str(tmp_path / "headers"), VARIABLE: "x=y"})


def test_an_envoy_finds_each_value_in_a_variable_of_its_own() -> None:
    assert envoy_variables({VARIABLE: "x-token=abc,x.y=z"}) == {
        "BATON_SPAN_HEADER_X_TOKEN": "abc",
        "BATON_SPAN_HEADER_X_Y": "z",
    }
