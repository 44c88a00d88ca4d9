# run.sh and test.sh source this file: it makes the environment once, and later checks that it exists.
#   ensure_environment EXTRAS    installs the package with "" or "[dev]" into $venv
# FEDEXP_VENV replaces the folder .venv, PYTHON the interpreter python3.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${FEDEXP_VENV:-$root/.venv}"

ensure_environment() {
    local extras="$1" wanted marker
    # The folder counts, too: two clones that share an environment install themselves in turn.
    wanted="$( (echo "$root"; cat "$root/pyproject.toml") | cksum | tr ' ' '-')"
    marker="$venv/.fedexp$extras-$wanted"
    # The developer's environment holds everything that the plain one does.
    if [ -e "$marker" ] || [ -e "$venv/.fedexp[dev]-$wanted" ]; then
        return
    fi
    if ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "fedexp needs Python 3.11 or newer; name one with PYTHON=/path/to/python3" >&2
        exit 1
    fi
    echo "Making the environment in $venv (once; a few minutes, mostly PyTorch) ..." >&2
    if [ ! -x "$venv/bin/python" ] && ! "${PYTHON:-python3}" -m venv "$venv"; then
        echo "python3 cannot make virtual environments: install its venv package (Debian: python3-venv)" >&2
        exit 1
    fi
    # pip's own progress: what it downloads, with bars on a terminal.
    "$venv/bin/python" -m pip install --disable-pip-version-check -e "$root$extras" >&2
    find "$venv" -maxdepth 1 -name ".fedexp*" ! -name "*-$wanted" -delete
    touch "$marker"
    echo "Done. To type fedexp in this terminal: source $venv/bin/activate" >&2
}
