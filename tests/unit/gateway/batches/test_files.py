"""Files: taken in as forms, listed, read, deleted, within a tenant's bounds."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from baton.wire.failures import InvalidRequest
from services.gateway.http.multipart import boundary_of, parts_of
from services.gateway.stored.store import BatchLimits
from tests.unit.gateway.batches.batch_client import BOUNDARY, BatchClient, form, with_batches


def test_a_file_comes_back_as_it_was_sent_until_it_is_deleted() -> None:
    async def scenario(client: BatchClient) -> None:
        # Of several pieces, with a line like a boundary's.
        content = "\r\n--xy\r\n" + "ü" * 300_000
        file = (await client.upload(content)).json
        size = len(content.encode())
        expected = ("file", "in.jsonl", "batch", size, "processed")
        assert tuple(file[n] for n in ("object", "filename", "purpose", "bytes", "status")) == (
            expected
        )
        path = f"/v1/files/{file['id']}"
        get = client.caller.get
        assert (await get(path)).json == file
        assert (await get(f"{path}/content")).body == content.encode()
        second = (await client.upload("x")).json
        listed = (await get("/v1/files?purpose=batch")).json
        assert {each["id"] for each in listed["data"]} == {file["id"], second["id"]}
        assert (await get("/v1/files?purpose=batch_output")).json["data"] == []
        deleted = await client.caller.call("DELETE", path)
        assert deleted.json == {"id": file["id"], "object": "file", "deleted": True}
        for gone in (path, f"{path}/content"):
            assert (await get(gone)).error == "404 not_found None"
        assert [key for key in await client.redis.keys() if file["id"].encode() in key] == []

    with_batches(scenario)


@pytest.mark.parametrize(
    ("content", "fields", "error"),
    [
        ("x" * 101, None, "413 body_too_large file"),
        ("", None, "400 invalid_value file"),
        ("x", {"purpose": "vision"}, "400 invalid_value purpose"),
        ("x", {"purpose": "batch", "more": "1"}, "400 unsupported_parameter more"),
        ("x", {"purpose": "b" * 2000}, "400 invalid_value purpose"),
    ],
)
def test_a_form_that_is_not_a_file_for_a_batch_is_refused_and_leaves_nothing(
    content: str, fields: dict[str, str] | None, error: str
) -> None:
    async def scenario(client: BatchClient) -> None:
        assert (await client.upload(content, fields)).error == error
        assert await client.redis.keys("*content") == []

    with_batches(scenario, BatchLimits(max_file_bytes=100))


def test_a_tenant_has_so_many_bytes_and_files() -> None:
    async def scenario(client: BatchClient) -> None:
        first = (await client.upload("x" * 400)).json["id"]
        assert (await client.upload("x" * 700)).error == "429 share_exceeded None"
        await client.caller.call("DELETE", f"/v1/files/{first}")
        assert (await client.upload("x" * 700)).status == 200
        assert (await client.upload("x")).error == "429 share_exceeded None"

    with_batches(scenario, BatchLimits(max_bytes_of_tenant=1500, max_objects_of_tenant=2))


def test_another_tenant_finds_no_file() -> None:
    async def scenario(client: BatchClient) -> None:
        file_id = (await client.upload("x")).json["id"]
        client.fleet.quota.principal.tenant = "other"
        await asyncio.sleep(client.fleet.quota.principal.fresh_for_s + 1)
        assert (await client.caller.get(f"/v1/files/{file_id}")).status == 404
        assert (await client.submit(input_file_id=file_id)).status == 404

    with_batches(scenario)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_form_is_read_in_pieces_of_any_size(size: int) -> None:
    body = form("a\r\n--x\r\nb", {"purpose": "batch", "empty": ""})

    async def chunks() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), size):
            yield body[begin : begin + size]

    async def read() -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        async for part, piece in parts_of(chunks(), BOUNDARY.encode()):
            found[part.name] = found.get(part.name, b"") + piece
        return found

    expected = {"purpose": b"batch", "empty": b"", "file": b"a\r\n--x\r\nb"}
    assert asyncio.run(read()) == expected


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "", "x;y=\n"])
def test_another_content_type_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="multipart/form-data"):
        boundary_of(content_type)


def test_a_long_content_type_is_refused_unread() -> None:
    with pytest.raises(InvalidRequest) as caught:
        boundary_of("multipart/form-data; boundary=b; a=" + ";" * 2048)
    assert caught.value.reason == "unsupported_media_type"


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
async def test_a_field_with_a_long_head_is_refused(end: bytes) -> None:
    async def sent() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="' + b";" * 2048 + end

    with pytest.raises(InvalidRequest, match="head of a field"):
        async for _ in parts_of(sent(), b"b"):
            pass
