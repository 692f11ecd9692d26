"""Downloads a model into a folder: `python -m baton.worker.download OWNER/NAME FOLDER`.

Run once per place where workers look for the model, before they start (a Job, an init step); they
wait for the file `.downloaded`, written last. Repeating it is cheap: what is there is kept. Only
configuration, tokenizer and safetensors files are fetched. The hub, its token and its cache are
huggingface_hub's own variables (HF_ENDPOINT, HF_TOKEN_PATH).
"""

import argparse
import sys
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from baton.model.load.source import FETCHED_PATTERNS

MARKER = ".downloaded"


def download(repository: str, revision: str, folder: Path) -> None:
    """Raises huggingface_hub's errors and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if marker.is_file() and marker.read_text().strip() == f"{repository}@{revision}":
        return
    marker.unlink(missing_ok=True)
    huggingface_hub.snapshot_download(
        repository, revision=revision, local_dir=folder, allow_patterns=list(FETCHED_PATTERNS)
    )
    marker.write_text(f"{repository}@{revision}\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton.worker.download", description="fetch a model once")
    parser.add_argument("repository", metavar="OWNER/NAME")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--revision", default="main")
    arguments = parser.parse_args(argv)
    try:
        download(arguments.repository, arguments.revision, arguments.folder)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        print(f"{arguments.repository}@{arguments.revision}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
