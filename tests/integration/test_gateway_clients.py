"""The gateway's ports over gRPC, when nobody listens at the other end."""

import pytest

from baton.wire.failures import Unavailable
from baton.wire.v1 import tokenizer_pb2
from services.gateway.clients import GrpcTokenizer
from services.gateway.ports import CallContext


async def test_a_tokenizer_that_is_down_is_no_news_about_internal_addresses() -> None:
    tokenizer = GrpcTokenizer("127.0.0.1:1")
    try:
        with pytest.raises(Unavailable) as caught:
            await tokenizer.encode(tokenizer_pb2.EncodeRequest(), CallContext("r1", deadline_s=5))
    finally:
        await tokenizer.close()
    assert caught.value.message == "no tokenizer answers"
    assert caught.value.retry_after_s == 1
