"""A request with two lengths at the gateway itself, which may have no Envoy in front."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.edge.edge_stack import send_two_lengths
from tests.integration.gateway.gateway_stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.mark.parametrize("order", [("length", "chunked"), ("chunked", "length")])
@pytest.mark.parametrize("cut", ["whole", "lines"])
async def test_two_lengths_are_one_400_and_a_close(
    stack: Stack, order: tuple[str, str], cut: str
) -> None:
    answer = await send_two_lengths(stack.port, order, cut)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
