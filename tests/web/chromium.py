"""Where Debian's Chromium is, and how it is started here."""

from __future__ import annotations

import shutil

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Tests may run as root, and in containers with a small /dev/shm.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
