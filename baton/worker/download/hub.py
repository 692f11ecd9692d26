"""A repository of Hugging Face's hub, or of a mirror of it.

The hub, its token, its cache and its proxies are huggingface_hub's own variables (HF_ENDPOINT,
HF_TOKEN_PATH, HTTPS_PROXY).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from baton.worker.download.fetch import OfferedFile

ERRORS = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError)


class HubSource:
    """One revision of a repository."""

    def __init__(self, repository: str, revision: str) -> None:
        self.repository = repository
        self.place = f"{repository}@{revision}"
        self._revision = revision
        self._commit = revision

    def offered(self) -> tuple[str, Mapping[str, OfferedFile]]:
        """The commit that the revision stands for, and its files. Raises ERRORS."""
        api = huggingface_hub.HfApi()
        info = api.model_info(self.repository, revision=self._revision, files_metadata=True)
        self._commit = info.sha or self._revision
        files = [
            OfferedFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
            for each in info.siblings or ()
        ]
        return self._commit, {file.name: file for file in files}

    def num_present(self, files: Sequence[OfferedFile], folder: Path) -> int:
        """Whole files, and what the library keeps of those that were cut."""
        whole = [file.num_bytes for file in files if (folder / file.name).is_file()]
        cut = (folder / ".cache/huggingface/download").rglob("*.incomplete")
        return sum(whole) + sum(path.stat().st_size for path in cut)

    def fetch(self, file: OfferedFile, folder: Path) -> Path:
        """Raises ERRORS and OSError."""
        return Path(
            huggingface_hub.hf_hub_download(
                self.repository, file.name, revision=self._commit, local_dir=folder
            )
        )
