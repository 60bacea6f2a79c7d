"""A hook of the build: writes the commit that it is made from into the package, for `pgqueue --version`, and puts the
benchmarks into a wheel, without those of other queues.

It asks git, or takes SOURCE_COMMIT where there is no repository, as in an image. An sdist carries the file that its own
build wrote.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds pgqueue/commit.txt and pgqueue/benchmarks/."""

    _scratch: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version != "editable":
            for file in sorted((Path(self.root) / "benchmarks").iterdir()):
                if file.suffix in (".py", ".json") and file.name != "rivals.json":
                    build_data["force_include"][str(file)] = f"pgqueue/benchmarks/{file.name}"
        # An editable installation runs in the checkout, which knows its commit at any time.
        if version == "editable" or (Path(self.root) / "pgqueue/commit.txt").exists():
            return
        commit = os.environ.get("SOURCE_COMMIT") or _of_checkout(Path(self.root))
        if commit:
            self._scratch = tempfile.mkdtemp()
            file = Path(self._scratch) / "commit.txt"
            file.write_text(f"{commit}\n")
            build_data["force_include"][str(file)] = "pgqueue/commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch)


def _of_checkout(root: Path) -> str:
    # Not a repository around it, such as that of a distribution.
    if not (root / ".git").exists():
        return ""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()
