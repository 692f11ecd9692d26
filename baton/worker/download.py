"""Downloads a model into a folder: `python -m baton.worker.download OWNER/NAME FOLDER`.

Run once per place where workers look for the model, before they start (a Job, an init step); they
wait for the file `.downloaded`, written last. Repeating it is cheap: files that are there are kept,
and a connection that is cut goes on where it was. Each file is read once after it came, held
against the hub's own digest, and noted in a manifest, from which fingerprints are made. The hub,
its token, its cache and its proxies are huggingface_hub's own variables (HF_ENDPOINT,
HF_TOKEN_PATH, HTTPS_PROXY).
"""

import argparse
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from baton.model.load.hub_files import INDEX_FILE, NoWeights, wanted_files
from baton.wire.manifest import MANIFEST_FILE, FileDigest, Manifest, read_manifest

MARKER = ".downloaded"
# Files at a time: what is under way when the process ends is fetched again.
_NUM_FILES = 4
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub describes it; it knows the SHA-256 of large ones only."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Download:
    """The files of one commit of a repository, and the folder that they go to."""

    repository: str
    commit: str
    folder: Path

    def fetch(self, file: HubFile) -> FileDigest:
        """Fetch a file unless it is there. Raises the hub's errors and OSError."""
        path = Path(self._get(file.name))
        with path.open("rb") as content:
            digest = file_digest(content, "sha256").hexdigest()
        if file.sha256 not in (None, digest):
            path.unlink()
            raise OSError(f"{file.name} came damaged: its SHA-256 is not the hub's; try again")
        return FileDigest(path.stat().st_size, digest)

    def index(self) -> bytes:
        """The content of the index of weights."""
        return Path(self._get(INDEX_FILE)).read_bytes()

    def check_room(self, files: Iterable[HubFile]) -> None:
        """Raises OSError when the files that are not there yet do not fit."""
        missing = [file for file in files if not (self.folder / file.name).is_file()]
        num_bytes = sum(file.num_bytes for file in missing)
        free = shutil.disk_usage(self.folder).free
        if num_bytes > free:
            raise OSError(
                f"{len(missing)} files need {num_bytes / _GIB:.2f} GiB, and {self.folder} has"
                f" {free / _GIB:.2f} GiB free: {(num_bytes - free) / _GIB:.2f} GiB are missing"
            )

    def _get(self, name: str) -> str:
        return huggingface_hub.hf_hub_download(
            self.repository, name, revision=self.commit, local_dir=self.folder
        )


def download(repository: str, revision: str, folder: Path) -> None:
    """Raises huggingface_hub's errors, NoWeights and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    done = f"{repository}@{revision}"
    has_manifest = read_manifest(folder) is not None
    if has_manifest and marker.is_file() and marker.read_text().strip() == done:
        return
    marker.unlink(missing_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    commit, offered = _offered(repository, revision)
    wanted = Download(repository, commit, folder)
    index = wanted.index() if INDEX_FILE in offered else None
    files = [offered[name] for name in wanted_files(offered, index)]
    wanted.check_room(files)
    with ThreadPoolExecutor(_NUM_FILES) as pool:
        digests = list(pool.map(wanted.fetch, files))
    named = dict(zip((file.name for file in files), digests, strict=True))
    Manifest(repository, commit, named).write(folder)
    _remove_other_weights(folder, named)
    marker.write_text(f"{done}\n")


def _offered(repository: str, revision: str) -> tuple[str, dict[str, HubFile]]:
    """The commit that a revision stands for, and its files by name."""
    api = huggingface_hub.HfApi()
    info = api.model_info(repository, revision=revision, files_metadata=True)
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
        for each in info.siblings or ()
    ]
    return info.sha or revision, {file.name: file for file in files}


def _remove_other_weights(folder: Path, wanted: Iterable[str]) -> None:
    """Weights of another revision would be loaded with those of this one."""
    for path in set(folder.glob("*.safetensors")) - {folder / name for name in wanted}:
        path.unlink()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton.worker.download", description="fetch a model once")
    parser.add_argument("repository", metavar="OWNER/NAME")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--revision", default="main")
    arguments = parser.parse_args(argv)
    refusals = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, NoWeights, OSError)
    try:
        download(arguments.repository, arguments.revision, arguments.folder)
    except refusals as error:
        reason = str(error).strip().partition("\n")[0]
        print(f"{arguments.repository}@{arguments.revision}: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
