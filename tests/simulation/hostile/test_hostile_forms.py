"""No form makes the gateway fail, and one that is refused leaves nothing in the store.

With BATON_TEST_LONG there are 20,000 forms.
"""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given

from services.gateway.openapi.answers import Error
from services.gateway.openapi.batch_answers import File
from tests.simulation.hostile.long_counts import IS_LONG, examples, in_parts, parts, sources
from tests.unit.gateway.batches.batch_client import BOUNDARY, BatchClient, form, with_batches
from tests.unit.gateway.hostile.bodies import spoilt
from tests.unit.gateway.hostile.described import is_described

BATCH = 100 if IS_LONG else 20
NUM_PARTS, NUM_EXAMPLES = 2, 100
TYPES = (
    *(f"multipart/form-data; boundary={BOUNDARY}",) * 9,
    "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\xff",
    'multipart/form-data; boundary="x"; boundary=xyz', "multipart/mixed; boundary=xyz", "", ";",
    "application/json", "multipart/form-data; boundary*=utf-8''%ff", "a/b; boundary=" + "x" * 600,
)  # fmt: skip
CONTENTS = ("{}", "", "\r\n", "x" * 300, f"\r\n--{BOUNDARY}", f"--{BOUNDARY}--", "\r\n\r\n", "\x00")
FIELDS = ("purpose", "file", "", "p\u00fcrpose", "expires_after", 'a"; filename="b', "a\r\nX: 1")


def nearly_right(random: Random) -> tuple[str, bytes]:
    """A content type, and a form."""
    names = [random.choice(FIELDS) for _ in range(random.randint(0, 2))]
    fields = {name: random.choice(("batch", "vision", "", "b" * 2000)) for name in names}
    given_form = form(random.choice(CONTENTS), {"purpose": "batch", **fields})
    return random.choice(TYPES), spoilt(random, given_form)


@in_parts
@pytest.mark.parametrize("part", parts(NUM_PARTS))
def test_every_form_is_taken_or_refused(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    num_sent = 0

    @examples(NUM_EXAMPLES, 4)
    @given(sources())
    def send(random: Random) -> None:
        async def scenario(client: BatchClient) -> None:
            for _ in range(BATCH):
                content_type, body = nearly_right(random)
                headers = {"content-type": content_type}
                answer = await client.caller.send("POST", "/v1/files", body, headers)
                assert answer.status in (200, 400, 413, 415), answer.body
                assert is_described(answer.body, File if answer.status == 200 else Error)
                if answer.status == 200:
                    name = answer.json["id"]
                    await client.caller.call("DELETE", f"/v1/files/{name}")
            assert await client.redis.keys("*content") == []

        nonlocal num_sent
        with_batches(scenario)
        num_sent += BATCH

    send()
    record_property("hostile forms", num_sent)
