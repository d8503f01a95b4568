"""A hook of mkdocs: the pages, written to be read in the repository, as a site.

The README becomes the first page. What pages link to outside docs/ (examples, CONTRIBUTING, pictures of the benchmarks) is put beside
them under `repository/`; a link to a folder becomes plain text, as a site has no listing of it.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
_BESIDE: Final = "repository"
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, and every file outside docs/ that a page links to."""
    pages = {ROOT / "README.md": "index.md"}
    pages |= {ROOT / "docs" / one.src_uri: one.src_uri for one in files.documentation_pages()}
    outside = set()
    for source in pages:
        for _, _, target, _ in _LINK.findall(source.read_text()):
            path = (source.parent / target).resolve()
            if path.is_file() and not path.is_relative_to(ROOT / "docs") and path not in pages:
                outside.add(path)
    files.append(File.generated(config, "index.md", content=_first_page()))
    for path in sorted(outside):
        # A Markdown file stays text: its own links are not the site's.
        name = f"{_BESIDE}/{path.relative_to(ROOT)}".removesuffix(".md") + (
            ".txt" if path.suffix == ".md" else ""
        )
        files.append(File.generated(config, name, abs_src_path=None, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Lead links to where on_files has put the files."""
    if page.file.src_uri == "index.md":
        return markdown
    return _led(markdown, ROOT / "docs" / page.file.src_uri)


def _first_page() -> str:
    return _led((ROOT / "README.md").read_text(), ROOT / "README.md")


def _led(markdown: str, source: Path) -> str:
    def lead(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        path = (source.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs") and path.is_file():
            return f"{mark}[{text}]({path.relative_to(ROOT / 'docs')}{anchor or ''})"
        if path == ROOT / "README.md":
            return f"{mark}[{text}](index.md{anchor or ''})"
        if path.is_dir():
            return text
        name = f"{path.relative_to(ROOT)}".removesuffix(".md") + (".txt" if path.suffix == ".md" else "")
        return f"{mark}[{text}]({_BESIDE}/{name})"

    return _LINK.sub(lead, markdown)
