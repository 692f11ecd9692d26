"""The client inside the cluster: streams the same questions until a file says stop.

Standard library only: it runs in the gateway's image. Prints a JSON line for each answer:
`question`, `seconds`, `pause` (the longest wait for a piece of text), `digest` of the text, and
`error`. Every request has a connection of its own and is tried once.
"""

import hashlib
import http.client
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STOP = Path("/tmp/stop")
TIMEOUT_S = 90
QUESTIONS = (
    "What is TTFT?",
    "Tell me the life of a request.",
    "What does the router do?",
    "What happens when a decode worker dies?",
)
PRINTING = threading.Lock()


def main() -> None:
    threads = [
        threading.Thread(target=stream_for_ever, args=(number,))
        for number in range(int(os.environ["NUM_STREAMS"]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stream_for_ever(number: int) -> None:
    while not STOP.exists():
        number += 1
        outcome = ask(number % len(QUESTIONS))
        with PRINTING:
            print(json.dumps(outcome), flush=True)


def ask(question: int) -> dict[str, Any]:
    """One request; whatever happens to it is in the outcome."""
    asked_s = time.monotonic()
    times_s, text, ending = [asked_s], "", ""
    try:
        for event in events(QUESTIONS[question]):
            if "error" in event:
                raise ValueError(json.dumps(event["error"]))
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                ending = choice["finish_reason"] or ending
                times_s.append(time.monotonic())
        error = "" if ending in ("stop", "length") else f"the stream ended: {ending!r}"
    except (OSError, http.client.HTTPException, ValueError) as failure:
        error = repr(failure)
    times_s.append(time.monotonic())
    return {
        "question": question,
        "seconds": round(times_s[-1] - asked_s, 2),
        "pause": round(max(b - a for a, b in itertools.pairwise(times_s)), 2),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:12],
        "error": error,
    }


def events(question: str) -> Any:
    """The events of one streamed chat completion."""
    target = urlsplit(os.environ["BASE_URL"])
    body = {
        "model": os.environ["MODEL"],
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 200,
        "stream": True,
    }
    headers = {
        "authorization": f"Bearer {os.environ['API_KEY']}",
        "content-type": "application/json",
    }
    connection = http.client.HTTPConnection(target.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"{target.path}/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{answer.status} {answer.read(500).decode(errors='replace')}")
        while line := answer.readline():
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        connection.close()


if __name__ == "__main__":
    main()
