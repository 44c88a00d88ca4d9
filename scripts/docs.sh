#!/usr/bin/env bash
# Build the documentation into docs/_build/html; warnings are errors. The network is used for the installation only.
#   --measure [--all] [GROUP/OPTION ...]    first remake the measured runs: those missing for this release, all of
#                                           them, or those named; about twenty minutes on two cores
#   --observe [METHOD ...]                  first see again what methods send, keep and refuse: all of them, or those
#                                           named; about ten minutes on two cores
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ensure_environment "[docs]"
cd "$root"

if [ "${1:-}" = --measure ]; then
    shift
    OMP_NUM_THREADS=1 "$venv/bin/python" docs/measure.py "$@"
elif [ "${1:-}" = --observe ]; then
    shift
    OMP_NUM_THREADS=1 "$venv/bin/python" docs/observe.py "$@"
elif [ $# -gt 0 ]; then
    echo "usage: bash scripts/docs.sh [--measure [--all] [GROUP/OPTION ...] | --observe [METHOD ...]]" >&2
    exit 2
fi
"$venv/bin/python" -m sphinx -b html -W --keep-going -q docs docs/_build/html
echo "docs/_build/html/index.html"
