"""Sphinx builds docs/ with this: `make docs`. The sources are plain Markdown (MyST), readable without it."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from pygments.lexers.sql import PostgresLexer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pgqueue  # noqa: E402
from docs.tools import repository  # noqa: E402

project = "pgqueue"
author = "The pgqueue maintainers"
copyright = author
version = release = pgqueue.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_copybutton"]
exclude_patterns = ["_build", "tools"]
nitpicky = True
# Types of the standard library and of drivers have no page here.
nitpick_ignore_regex = [(r"py:.*", r".*")]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# A figure of ours is SVG, and follows the reader's theme.
html_theme = "furo"
html_title = f"pgqueue {release}"
html_static_path = ["_static"]
html_css_files = ["pgqueue.css"]
html_extra_path = ["llms.txt"]  # An index for programs that read: docs/tools/llms.py writes it.
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r"\$ |=> "
copybutton_prompt_is_regexp = True

# Only the tables: the pages are written by the generator.
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

linkcheck_anchors = False
linkcheck_timeout = 10
linkcheck_retries = 1
# Addresses of a reader's own machine, and of examples.
linkcheck_ignore = [r"https?://(127\.0\.0\.1|localhost|[\w.-]*example\.(com|org))"]


def as_restructured_text(lines: list[str]) -> list[str]:
    """Return a docstring, which is Markdown with indented code and columns, as reStructuredText.

    Code in single backticks becomes literal. A paragraph that is indented, or in columns, is kept as it stands.
    """
    found: list[str] = []
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", "\n".join(lines).strip("\n")):
        block = paragraph.split("\n")
        if re.match(r"- ", block[0]):
            found += [_literal(line) for line in block]
        elif block[0].startswith(" ") or any(re.search(r"\S {2,}\S", line) for line in block):
            found += ["::", "", *("    " + line for line in block)]
        elif any(line.startswith("    ") for line in block[1:]):
            # A sentence, then its example without a blank line.
            at = next(n for n, line in enumerate(block) if n and line.startswith("    "))
            found += [*(_literal(line) for line in block[:at]), "", "::", "", *block[at:]]
        else:
            found += [_literal(line) for line in block]
        found.append("")
    return found


def _literal(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(f"`{part}`" if part.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", part) for part in parts)


def _process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


def _read_source(app: Any, docname: str, content: list[str]) -> None:
    """Lead a link to a file of the repository that is no page here to the page with that file."""
    here = (Path(app.srcdir) / docname).parent

    def shown(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if not repository.is_outside(target, here):
            return found[0]
        text = re.sub("`([^`]+)`", r'<code class="docutils literal">\1</code>', escape(text))
        return f'<a class="reference" href="{repository.href(target, here, docname)}">{text}</a>'

    content[0] = repository.LINK.sub(shown, content[0])


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("source-read", _read_source)
    app.connect("html-collect-pages", repository.pages)
    app.add_lexer("sql", PostgresLexer)
