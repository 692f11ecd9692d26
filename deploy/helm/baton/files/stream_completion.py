"""Asks for one streamed completion and checks that it comes in pieces and ends well.

Standard library only: it runs in the gateway's image as `helm test`. Prints what it found; exit
status 1 and one line say what was wrong.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 60


def main() -> None:
    key = Path(os.environ["KEY_FILE"]).read_text().strip()
    body = {
        "model": os.environ["MODEL"],
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 16,
        "stream": True,
    }
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    # The certificate for clients may be of any name; this asks from inside.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            lines = [line.strip() for line in answer if line.startswith(b"data:")]
    except urllib.error.HTTPError as error:
        sys.exit(f"status {error.code}: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"no answer: {error}")
    if not lines or lines[-1] != b"data: [DONE]":
        sys.exit(f"the stream of {len(lines)} events did not end with [DONE]")
    events = [json.loads(line.removeprefix(b"data:")) for line in lines[:-1]]
    num_pieces = sum(
        bool(choice["delta"].get("content")) for e in events for choice in e["choices"]
    )
    if num_pieces < 2:
        sys.exit(f"{num_pieces} pieces of text: the answer was not streamed")
    print(f"{num_pieces} pieces of text in {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
