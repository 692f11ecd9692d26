"""Downloads a model into a folder: `python -m baton.worker.download SOURCE FOLDER`.

`--manifest FOLDER` notes the files of a folder that is already there, so that no start of a worker
reads its weights to know what they are; after a change of files it is run again.

SOURCE is a repository of a hub (OWNER/NAME) or a folder of a store (s3://, gs://, az://). Run once
per place where workers look for the model, before they start (a Job, an init step).
"""

import argparse
import sys
from pathlib import Path

from baton.model.load.hub_files import NoWeights
from baton.wire.manifest import MANIFEST_FILE
from baton.worker.download.fetch import download
from baton.worker.download.noted import note_files


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton.worker.download", description="fetch a model once")
    parser.add_argument(
        "source", metavar="SOURCE", nargs="?", help="OWNER/NAME, or s3://BUCKET/PATH"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--revision", default="main", help="of a hub's repository")
    parser.add_argument(
        "--manifest", action="store_true", help="fetch nothing, and note the files of FOLDER"
    )
    arguments = parser.parse_args(argv)
    if arguments.manifest != (arguments.source is None):
        parser.error("give SOURCE and FOLDER, or --manifest and FOLDER")
    if arguments.manifest:
        return _note(arguments.folder)
    place, revision = str(arguments.source), str(arguments.revision)
    try:
        if "://" in place:
            _from_store(place, arguments.folder)
        else:
            place = f"{place}@{revision}"
            _from_hub(arguments.source, revision, arguments.folder)
    except (NoWeights, OSError) as error:
        return _refused(place, error)
    return 0


def _note(folder: Path) -> int:
    try:
        fingerprint = note_files(folder)
    except OSError as error:
        return _refused(str(folder), error)
    print(f"{folder}: files noted in {MANIFEST_FILE}; fingerprint {fingerprint}")
    return 0


def _from_hub(repository: str, revision: str, folder: Path) -> None:
    """Raises NoWeights and OSError."""
    from baton.worker.download.hub import ERRORS, HubSource

    try:
        download(HubSource(repository, revision), folder)
    except ERRORS as error:
        raise OSError(str(error)) from error


def _from_store(url: str, folder: Path) -> None:
    """Raises NoWeights and OSError."""
    from baton.worker.download.store import ERRORS, StoreSource

    try:
        download(StoreSource(url), folder)
    except ERRORS as error:
        raise OSError(str(error)) from error


def _refused(place: str, error: Exception) -> int:
    reason = str(error).strip().partition("\n")[0]
    print(f"{place}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
