"""What the documentation's site does beyond docs/, as a hook of MkDocs (`mkdocs.yml`).

README.md is its first page. A folder in `nav` stands for all of its pages, in the order of their
names. A link that leaves docs/ goes to the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(\]\()([^)\s#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder of `nav` by its pages."""
    config.nav = _filled(config.nav)
    return config


def _filled(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_filled(each) for each in entry]
    if isinstance(entry, dict):
        return {title: _filled(value) for title, value in entry.items()}
    if not entry.endswith("/"):
        return entry
    return [f"{entry}{page.name}" for page in sorted((_ROOT / "docs" / entry).glob("*.md"))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page."""
    text = (_ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=_linked(text, "", config.repo_url)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the repository."""
    if page.file.generated_by:
        return markdown
    return _linked(markdown, posixpath.join("docs", page.file.src_uri), config.repo_url)


def _linked(markdown: str, page: str, repository: str | None) -> str:
    folder = posixpath.dirname(page)

    def changed(link: re.Match[str]) -> str:
        target = link[2]
        if ":" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") and (_ROOT / path).is_file():
            inside = posixpath.relpath(path, "docs")
            return link[1] + (target if page else inside)
        kind = "tree" if (_ROOT / path).is_dir() else "blob"
        return f"{link[1]}{repository}{kind}/main/{path}"

    return _LINK.sub(changed, markdown)
