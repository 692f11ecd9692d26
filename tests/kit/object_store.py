"""A store of objects over real HTTP, by S3's protocol: one bucket in memory, and the faults that a
test asks for.

It lists in pages, serves ranges, holds If-Match against its tags, and refuses unknown keys.
"""

from collections import Counter
from hashlib import md5
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.kit.memory_server import MemoryServer

KEY_ID, SECRET = "AKIDTEST", "secret-of-a-test"
PAGE = 3


class ObjectStore(MemoryServer):
    """One bucket, `models`; `url` is AWS_ENDPOINT_URL's value."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        # (key, range) of each content that was asked for.
        self.reads: list[tuple[str, str]] = []
        self.num_lists = 0
        # How often the next answers to a key are refused with 503, and the bytes after which the
        # next answer's connection is cut.
        self.refusals: Counter[str] = Counter()
        self.cuts: dict[str, int] = {}
        super().__init__(_Handler)

    def read(self) -> set[str]:
        """The keys whose content was asked for."""
        return {key for key, _ in self.reads}


class _Handler(BaseHTTPRequestHandler):
    owner: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        known = self.headers.get("Authorization", "")
        if not known.startswith(f"AWS4-HMAC-SHA256 Credential={KEY_ID}/"):
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        _, bucket, key = (*unquote(asked.path).split("/", 2), "")[:3]
        if bucket != "models":
            self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif key:
            self._object(key)
        else:
            self._list({name: values[0] for name, values in parse_qs(asked.query).items()})

    def _list(self, query: dict[str, str]) -> None:
        self.owner.num_lists += 1
        keys = sorted(key for key in self.owner.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", 0))
        page, is_more = keys[start : start + PAGE], start + PAGE < len(keys)
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_tag(self.owner.objects[key]))}</ETag>"
            f"<Size>{len(self.owner.objects[key])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if is_more else ""
        body = (
            f"<ListBucketResult><Name>models</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(is_more).lower()}</IsTruncated>{more}{entries}</ListBucketResult>"
        )
        self._send(200, body.encode(), {"Content-Type": "application/xml"})

    def _object(self, key: str) -> None:
        store = self.owner
        content = store.objects.get(key)
        if store.refusals[key]:
            store.refusals[key] -= 1
            self._send(503, b"<Error><Code>SlowDown</Code></Error>")
        elif content is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif self.headers.get("If-Match", _tag(content)) != _tag(content):
            self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            asked = self.headers.get("Range", f"bytes=0-{len(content) - 1}")
            store.reads.append((key, asked))
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            told = {
                "Content-Range": f"bytes {first}-{last}/{len(content)}",
                "ETag": _tag(content),
                "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            }
            self._send(206, content[first : last + 1], told, cut=store.cuts.pop(key, None))

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


def _tag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'
