#!/usr/bin/env bash
# Collects the wheels that a machine without internet, with Python and PyTorch alone, needs for fedexp:
#   bash scripts/wheels.sh FOLDER [PYTHON VERSION ...]      # 3.11 and 3.12 unless others are named
# There, with FOLDER and this repository:
#   bash FOLDER/install.sh          # what the machine lacks, and nothing of PyTorch
#   PYTHONPATH=. python scripts/bench_gpu.py --to RESULTS
# The versions are those of this environment (PYTHON, or python3), in which fedexp must be installed. PyTorch and its
# libraries are left out. torchvision is in; where it is missing, PyTorch must have the version of this environment.
set -euo pipefail

folder="${1:?usage: bash scripts/wheels.sh FOLDER [PYTHON VERSION ...]}"
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.11 3.12)
python="${PYTHON:-python3}"
mkdir -p "$folder"

# All that fedexp requires, directly or not, as NAME==VERSION; what only PyTorch requires is on the machine.
"$python" - > "$folder/requirements.txt" <<'PYTHON'
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

found, left = {}, ["fedexp"]
while left:
    for line in requires(left.pop()) or ():
        needed = Requirement(line)
        name = needed.name.lower().replace("_", "-")
        if name in found or name == "torch" or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
        left.append(name)
print("\n".join(f"{name}=={found[name].partition('+')[0]}" for name in sorted(found)))
PYTHON

# This one has no wheel, and fits every Python.
"$python" -m pip wheel --no-deps --quiet --wheel-dir "$folder" "$(grep '^antlr4-python3-runtime==' "$folder/requirements.txt")"
for version in "${versions[@]}"; do
    echo "Python $version" >&2
    "$python" -m pip download --no-deps --quiet --disable-pip-version-check --only-binary=:all: --python-version "$version" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform linux_x86_64 \
        --find-links "$folder" --dest "$folder" --requirement "$folder/requirements.txt"
done

cat > "$folder/install.sh" <<'INSTALL'
#!/usr/bin/env bash
# Installs the packages of this folder that the environment of PYTHON (or python3) lacks. It needs no internet.
set -euo pipefail
folder="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python3}"
missing="$("$python" - "$folder/requirements.txt" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version

for line in open(sys.argv[1]):
    try:
        version(line.partition("==")[0])
    except PackageNotFoundError:
        print(line.strip())
PYTHON
)"
[ -z "$missing" ] || "$python" -m pip install --no-index --no-deps --find-links "$folder" $missing
INSTALL
du -sh "$folder" >&2
