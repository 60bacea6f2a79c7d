#!/bin/sh
# Build the wheel of the release before from the history of this repository, beside this script.
#   tests/upgrade/build.sh [COMMIT]
set -eu
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git archive "${1:-f260d97}" | tar x -C "$scratch"
rm -f tests/upgrade/*.whl
"${PYTHON:-python3}" -m pip wheel --quiet --no-deps --wheel-dir tests/upgrade "$scratch"
ls -l tests/upgrade/*.whl
