"""The papers beside the README: whole, and up to date with the code."""

from __future__ import annotations

import hashlib
import re

import pgqueue
from pgqueue.schema import bundled
from tests.docs.pages import ROOT, read

# The text at https://www.apache.org/licenses/LICENSE-2.0.txt.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_license_is_the_whole_unmodified_text() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_0


def test_the_changelog_has_an_entry_for_this_version_and_for_unreleased_changes() -> None:
    headings = re.findall(r"^## \[(.*?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert pgqueue.__version__ in headings


def test_the_changelog_names_the_newest_revision() -> None:
    assert f"Schema revision {bundled.revisions()[-1]}." in read("CHANGELOG.md")
