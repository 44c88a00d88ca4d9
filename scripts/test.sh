#!/usr/bin/env bash
# Checks style, types and imports and runs the tests: bash scripts/test.sh [--slow] [pytest arguments ...].
# Makes the environment the first time. --slow adds the tests that take minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ensure_environment "[dev]"
cd "$root"

marks=(-m "not slow")
if [ "${1:-}" = "--slow" ]; then
    marks=()
    shift
fi

"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy" --config-file scripts/mypy.ini &
scripts_types=$!
"$venv/bin/mypy"
wait "$scripts_types"
# Its report is long: only a broken contract is shown.
contracts="$("$venv/bin/lint-imports" --no-logo --no-cache 2>&1)" || { echo "$contracts" >&2; exit 1; }
# Runs flush every file to disk, which takes no time in memory.
if [ -z "${TMPDIR:-}" ] && [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt 4000000 ] 2>/dev/null; then
    export TMPDIR=/dev/shm
fi
# One process a core, one torch thread each.
export OMP_NUM_THREADS=1
exec "$venv/bin/python" -m pytest -n auto --dist worksteal "${marks[@]}" "$@"
