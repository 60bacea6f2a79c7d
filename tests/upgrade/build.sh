#!/bin/sh
# Pack the release before, from the history of this repository, beside this script: what its worker needs.
#   tests/upgrade/build.sh [COMMIT]
# Its schema is tests/migrations/release_*.sql.gz, which `python -m tests.migrations.releases` writes at that commit.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/source" "$scratch/release"
git archive "${1:-f6f0ad9}" | tar x -C "$scratch/source"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$scratch" "$scratch/source"
"$python" -m zipfile -e "$scratch"/*.whl "$scratch/release"
cd "$scratch/release"
rm -rf pgqueue/web pgqueue/benchmarks pgqueue/examples
cd - >/dev/null
tar --sort=name --owner=0 --group=0 --mtime=@0 -cJf tests/upgrade/last_release.tar.xz -C "$scratch/release" .
ls -l tests/upgrade/last_release.tar.xz
