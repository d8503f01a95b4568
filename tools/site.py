"""A hook of mkdocs: the pages, written to be read in the repository, as a site.

The README becomes the first page, the Chinese one a page of its own. What pages link to outside docs/ (examples, CONTRIBUTING, pictures of the benchmarks) is put beside
them under `repository/`; a link to a folder becomes plain text, as a site has no listing of it.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
_BESIDE: Final = "repository"
_READMES: Final = {ROOT / "README.md": "index.md", ROOT / "README.zh-CN.md": "zh-CN.md"}
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, and every file outside docs/ that a page links to."""
    pages = [*_READMES, *(ROOT / "docs" / one.src_uri for one in files.documentation_pages())]
    outside = set()
    for source in pages:
        for _, _, target, _ in _LINK.findall(source.read_text()):
            path = (source.parent / target).resolve()
            if path.is_file() and not path.is_relative_to(ROOT / "docs") and path not in _READMES:
                outside.add(path)
    for source, name in _READMES.items():
        files.append(File.generated(config, name, content=_led(source.read_text(), source)))
    for path in sorted(outside):
        files.append(File.generated(config, _beside(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Lead links to where on_files has put the files."""
    if page.file.src_uri in _READMES.values():
        return markdown
    return _led(markdown, ROOT / "docs" / page.file.src_uri)


def _beside(path: Path) -> str:
    """Where a file outside docs/ lies. Markdown stays text: its own links are not the site's."""
    name = f"{_BESIDE}/{path.relative_to(ROOT)}"
    return name.removesuffix(".md") + ".txt" if path.suffix == ".md" else name


def _led(markdown: str, source: Path) -> str:
    def lead(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        path = (source.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs") and path.is_file():
            return f"{mark}[{text}]({path.relative_to(ROOT / 'docs')}{anchor or ''})"
        if path in _READMES:
            return f"{mark}[{text}]({_READMES[path]}{anchor or ''})"
        if path.is_dir():
            return text
        return f"{mark}[{text}]({_beside(path)})"

    return _LINK.sub(lead, markdown)
