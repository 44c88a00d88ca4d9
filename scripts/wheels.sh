#!/usr/bin/env bash
# Collects the wheels that a machine without internet, with Python and PyTorch alone, needs for fedexp:
#   bash scripts/wheels.sh FOLDER [PYTHON VERSION ...]      # 3.11 and 3.12 unless others are named
# There, with FOLDER and this repository:
#   bash FOLDER/install.sh          # what the machine lacks, and nothing of PyTorch
#   PYTHONPATH=. python scripts/bench_gpu.py --to RESULTS
# The versions are those of this environment (PYTHON, or python3), in which fedexp must be installed. PyTorch and what only
# PyTorch requires are left out. torchvision is in, for this environment's PyTorch. For a machine that has another PyTorch and
# no torchvision, name the torchvision that belongs to that PyTorch: TORCHVISION=0.26.0 bash scripts/wheels.sh FOLDER
set -euo pipefail

folder="${1:?usage: bash scripts/wheels.sh FOLDER [PYTHON VERSION ...]}"
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.11 3.12)
python="${PYTHON:-python3}"
mkdir -p "$folder"

# needed.txt: what fedexp requires. collected.txt: what it requires directly or not, as NAME==VERSION.
"$python" - "$folder" "${versions[@]}" <<'PYTHON'
import sys
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required(name, extra=""):
    """The requirements of this package and extra, on one of the versions of Python."""
    for each in map(Requirement, requires(name) or ()):
        places = [{"extra": extra, "python_version": one} for one in sys.argv[2:]]
        if each.name != "torch" and (not each.marker or any(map(each.marker.evaluate, places))):
            yield each


found, left = {}, [("fedexp", "")]
seen = set(left)
while left:
    for each in required(*left.pop()):
        name = canonicalize_name(each.name)
        found[name] = version(name).partition("+")[0]
        new = {(name, extra) for extra in ("", *each.extras)} - seen
        seen |= new
        left += new
folder = Path(sys.argv[1])
folder.joinpath("needed.txt").write_text("".join(f"{each}\n" for each in required("fedexp")))
lines = [f"{name}=={found[name]}\n" for name in sorted(found)]
folder.joinpath("collected.txt").write_text("".join(lines))
PYTHON
[ -z "${TORCHVISION:-}" ] || sed -i "s/^torchvision==.*/torchvision==$TORCHVISION/" "$folder/collected.txt"

# This one has no wheel, and fits every Python.
"$python" -m pip wheel --no-deps -qq --wheel-dir "$folder" "$(grep '^antlr4-python3-runtime==' "$folder/collected.txt")"
for version in "${versions[@]}"; do
    echo "Python $version" >&2
    "$python" -m pip download --no-deps -qq --only-binary=:all: --python-version "$version" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform linux_x86_64 \
        --find-links "$folder" --dest "$folder" --requirement "$folder/collected.txt"
done

cat > "$folder/install.sh" <<'INSTALL'
#!/usr/bin/env bash
# Installs the packages of this folder that the environment of PYTHON (or python3) lacks, or has in a version that is too old
# for fedexp. Its PyTorch stays. It needs no internet.
set -euo pipefail
folder="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
its_torch="$(mktemp)"
trap 'rm -f "$its_torch"' EXIT
"$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > "$its_torch"
"$python" -m pip install --quiet --no-index --find-links "$folder" --constraint "$its_torch" --requirement "$folder/needed.txt"
INSTALL
du -sh "$folder" >&2
