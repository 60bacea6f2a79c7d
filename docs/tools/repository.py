"""Pages of the built site for the files of the repository that its pages link: README, examples, rules of monitors.

So these links lead somewhere wherever the site stands, and without a network.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

# A link of Markdown, not an image.
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

# What a checkout holds beside its files.
_NO_FILE = re.compile(r"^(\..*|__pycache__|node_modules|target|build|.*\.(png|gz|lock|sum))$")


def address() -> str | None:
    """Return the address of the repository; None before it has one."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    found: str = urls["Repository"]
    return None if ".example/" in found else found


def href(target: str, here: Path, page: str) -> str | None:
    """Return where a link of a file in the directory `here` leads from `page` of the site; None: it stays as it is."""
    path, _, anchor = target.partition("#")
    if not path or re.match(r"\w+:", path):
        return None
    found = (here / path).resolve()
    if not found.is_relative_to(ROOT):
        return None
    if found == ROOT:
        return address() or relpath(f"{_page(found)}.html", dirname(page) or ".")
    if found.is_relative_to(DOCS):
        inside = found.relative_to(DOCS).as_posix()
        place = f"_images/{found.name}" if found.suffix in (".png", ".svg") else re.sub(r"\.md$", ".html", inside)
    else:
        place = f"{_page(found)}.html"
    return relpath(place, dirname(page) or ".") + (f"#{anchor}" if anchor else "")


def pages(app: Any = None) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Return the pages, for Sphinx: name, title and body, template."""
    for path in sorted(_linked()):
        title, body = _shown(path)
        yield _page(path), {"title": title, "body": body, "parents": []}, "page.html"


def is_outside(target: str, here: Path) -> bool:
    """Tell whether a link leads to a file of the repository that is no page of docs/."""
    path = target.partition("#")[0]
    found = (here / path).resolve()
    return bool(path) and not re.match(r"\w+:", path) and found.is_relative_to(ROOT) and not found.is_relative_to(DOCS)


@cache
def _linked() -> set[Path]:
    """The files and directories that the pages link, and those that these link in turn."""
    found = {ROOT}
    left = [each for page in DOCS.rglob("*.md") for each in _targets(page)]
    while left:
        path = left.pop()
        if path in found or path.is_relative_to(DOCS):
            continue
        found.add(path)
        if path.is_dir():
            left += _files(path)
        elif path.suffix == ".md":
            left += _targets(path)
    return found


def _targets(page: Path) -> list[Path]:
    text = _FENCE.sub("", page.read_text())
    named = [each for _, each in LINK.findall(text) if is_outside(each, page.parent)]
    return [(page.parent / each.partition("#")[0]).resolve() for each in named]


def _files(directory: Path) -> list[Path]:
    return sorted(each for each in directory.iterdir() if not _NO_FILE.match(each.name))


def _page(path: Path) -> str:
    inside = path.relative_to(ROOT).as_posix()
    return "repository/index" if inside == "." else f"repository/{inside}"


def _shown(path: Path) -> tuple[str, str]:
    title = "The repository" if path == ROOT else path.relative_to(ROOT).as_posix()
    if path.is_dir():
        rows = [
            f'<li><a href="{href(each.name, path, _page(path))}">{escape(each.name)}</a></li>'
            for each in _files(path)
            if each in _linked()
        ]
        return title, f"<h1>{escape(title)}</h1><ul>{''.join(rows)}</ul>"
    if path.suffix != ".md":
        return title, f"<h1>{escape(title)}</h1>{_code(path.read_text(), path.name)}"
    return title, _markdown(path)


def _markdown(path: Path) -> str:
    reader = MarkdownIt("commonmark", {"highlight": lambda text, language, _: _code(text, language)}).enable("table")
    reader.use(anchors_plugin, max_level=4, slug_func=_slug)
    tokens = reader.parse(path.read_text())
    for token in (child for each in tokens for child in each.children or ()):
        for name in ("href", "src"):
            if place := href(str(token.attrs.get(name, "")), path.parent, _page(path)):
                token.attrs[name] = place
    return str(reader.renderer.render(tokens, reader.options, {}))


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def _code(text: str, language: str) -> str:
    try:
        lexer = get_lexer_for_filename(language) if "." in language else get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    # As Sphinx writes it: so it has a button to copy it.
    return f'<div class="highlight-default notranslate">{highlight(text, lexer, HtmlFormatter())}</div>'
