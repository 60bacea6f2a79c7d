"""The built site: its links to files of the repository lead to pages with these files, wherever the site stands."""

from __future__ import annotations

import posixpath
import re

from docs.tools import repository
from tests.docs.pages import ROOT, pages, prose


def test_the_site_has_a_page_for_each_file_that_its_pages_link() -> None:
    found = {name for name, _, _ in repository.pages()}
    linked = {
        (page, target)
        for page in pages()
        if page.startswith("docs/")
        for _, target in repository.LINK.findall(prose(page))
        if repository.is_outside(target, (ROOT / page).parent)
    }
    assert len(linked) > 20
    for page, target in linked:
        place = repository.href(target, (ROOT / page).parent, page.removeprefix("docs/"))
        assert place is not None
        whole = posixpath.normpath(
            posixpath.join(posixpath.dirname(page.removeprefix("docs/")), place.partition("#")[0])
        )
        assert whole.removesuffix(".html") in found, (page, target)
    assert {
        f"repository/{name}" for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "examples/shop/app.py")
    } <= found


def test_each_link_of_such_a_page_leads_to_a_page_or_a_picture_of_the_site() -> None:
    found = {name: context["body"] for name, context, _ in repository.pages()}
    pictures = {f"_images/{path.name}" for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".svg")}
    lost = [
        (name, target)
        for name, body in found.items()
        for target in re.findall(r'(?:href|src)="([^"#]+)', body)
        if not re.match(r"\w+:", target) and not _is_there(name, target, {*found}, pictures)
    ]
    assert lost == []


def _is_there(name: str, target: str, others: set[str], pictures: set[str]) -> bool:
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    page = place.removesuffix(".html")
    return page in others or place in pictures or (ROOT / "docs" / f"{page}.md").exists()


def test_a_link_of_a_page_of_the_repository_keeps_its_anchor_and_leads_up_to_the_pages() -> None:
    assert repository.href("docs/why.md#three-figures", ROOT, "repository/README.md") == "../why.html#three-figures"
    assert (
        repository.href("../../SECURITY.md", ROOT / "docs" / "how-to", "how-to/keys")
        == "../repository/SECURITY.md.html"
    )
    assert repository.href("https://www.postgresql.org", ROOT, "index") is None


def test_code_of_such_a_page_can_be_copied() -> None:
    [body] = [context["body"] for name, context, _ in repository.pages() if name == "repository/examples/shop/app.py"]
    assert '<div class="highlight"><pre>' in body
