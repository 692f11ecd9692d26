"""The first requests that `baton up` shows, by what the model gives."""

import json
import re

import pytest

from baton.cli.up import examples
from baton.wire.pooling import Pooling


@pytest.mark.parametrize(
    ("pooling", "path", "field"),
    [
        (None, "/v1/chat/completions", "messages"),
        (Pooling("last", 8), "/v1/embeddings", "input"),
        (Pooling("last", 1, is_score=True), "/v1/rerank", "query"),
    ],
)
def test_a_model_is_asked_for_what_it_gives(pooling: Pooling | None, path: str, field: str) -> None:
    shown = examples("http://h:1/v1", "key", "m", pooling)
    found = re.search(r"curl http://h:1(\S+) .*?-d '(.*?)'$", shown, re.S | re.M)
    assert found is not None
    body = json.loads(found[2])
    assert (found[1], body["model"]) == (path, "m")
    assert field in body
    assert ("from openai import OpenAI" in shown) == (pooling is None)
