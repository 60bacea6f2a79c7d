"""The figures of the pages are those that the script draws, and each is shown somewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs.tools import figures, llms, measured
from tests.docs.pages import pages, read


@pytest.mark.parametrize("name", sorted(figures.drawn()))
def test_a_figure_is_up_to_date_and_well_formed(name: str) -> None:
    text = figures.drawn()[name]
    assert (figures.FIGURES / name).read_text() == text, "run: make figures"
    root = ElementTree.fromstring(text)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text


def test_every_figure_is_shown_on_a_page_with_a_text_for_those_who_do_not_see_it() -> None:
    shown = {
        name for page in pages() for name in re.findall(r"!\[[^\]]{20,}\]\([^)]*/figures/(\w+\.svg)\)", read(page))
    }
    assert shown == set(figures.drawn()) == {path.name for path in figures.FIGURES.iterdir()}


def test_the_index_for_programs_names_every_page_and_is_up_to_date() -> None:
    text = read("docs/llms.txt")
    assert text == llms.index(), "run: make figures"
    named = set(re.findall(r"\]\(([\w/-]+)\.html\)", text))
    found = {page.removeprefix("docs/").removesuffix(".md") for page in pages() if page.startswith("docs/")}
    assert named == found - {"index"}


def test_the_page_of_measured_figures_is_what_the_benchmarks_reported() -> None:
    assert measured.PAGE.read_text() == measured.page(), "run: make figures"


def test_the_page_on_the_first_limit_has_the_figures_of_the_benchmarks() -> None:
    text = measured.SCALE.read_text()
    assert measured.scale(text) == text, "run: make figures"
    # Figures of another day are replaced, each of them.
    assert measured.scale(re.sub(r"[\d,]+(?= bytes instead of)", "7", text)) == text


@pytest.mark.parametrize("name", sorted(figures.drawn()))
def test_nothing_of_a_figure_stands_outside_of_it(name: str) -> None:
    root = ElementTree.fromstring(figures.drawn()[name])
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(rect.attrib[each]) for each in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
