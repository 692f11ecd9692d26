"""A small served model, in process: no children, no threads."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from baton.testing.tokenizer_folder import build_tokenizer_folder
from services.tokenizer.model_folder import read_model_folder
from services.tokenizer.served_model import ServedModel, load_model
from tests.kit.in_process_renderer import in_process_renderers

TEMPLATES = Path(__file__).parent / "templates"


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


async def load_in_process(folder: Path, name: str = "demo") -> ServedModel:
    make_renderer = in_process_renderers(lambda: datetime(2026, 11, 20))
    described = read_model_folder(folder, name)
    return await load_model(described, make_renderer, run_inline, lambda n: b"\7" * n)


@pytest.fixture(scope="session")
def load() -> Callable[[Path], Awaitable[ServedModel]]:
    """Loads a folder as the service does."""
    return load_in_process


@pytest.fixture(scope="session")
def chatml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = (TEMPLATES / "chatml.jinja").read_text()
    return build_tokenizer_folder(tmp_path_factory.mktemp("models") / "chatml", template=template)


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without chat template."""
    return build_tokenizer_folder(tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture
async def chatml(chatml_folder: Path) -> ServedModel:
    return await load_in_process(chatml_folder)


@pytest.fixture
async def plain(plain_folder: Path) -> ServedModel:
    return await load_in_process(plain_folder, "plain")
