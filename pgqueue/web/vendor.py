"""Fetches third-party files of the pages from npm, by static/vendor/vendor.toml, and writes their sums: `make vendor`.

To take another version, change it in vendor.toml, in the name of the file, in base.html and in NOTICE.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

VENDOR = Path(__file__).with_name("static") / "vendor"


def fetch() -> None:
    """Write each file and its licence, and the sums."""
    listing = VENDOR / "vendor.toml"
    text = listing.read_text()
    for name, entry in tomllib.loads(text).items():
        with tempfile.TemporaryDirectory() as directory:
            package = f"{entry['package']}@{entry['version']}"
            subprocess.run(["npm", "pack", "--silent", package], cwd=directory, check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(directory).glob("*.tgz")
            content = _member(archive, f"package/{entry['path']}")
            (VENDOR / entry["file"]).write_bytes(content)
            (VENDOR / entry["license_file"]).write_bytes(_member(archive, "package/LICENSE"))
        found = hashlib.sha256(content).hexdigest()
        text = re.sub(rf'(\[{re.escape(name)}\][^\[]*sha256 = ")[0-9a-f]*', rf"\g<1>{found}", text)
    listing.write_text(text)


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(name)
        if file is None:
            raise FileNotFoundError(name)
        return file.read()


if __name__ == "__main__":
    fetch()
