"""Install each extra alone in a new environment, and run what the extra is for.

    python scripts/extras.py docs timm    these extras; without names: all
    python scripts/extras.py --list

Each environment needs 6 GB, mostly PyTorch, and is deleted before the next one is made. pip
downloads the packages; the commands themselves need no network. Uses the standard library only.
The exit code is 1 if a command fails.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RUN = "fedexp rounds=1 local.epochs=1 data.subset=100 clients.count=4 clients.per_round=2"
RUN += " algorithm=fedavg measure.personal=null"
TABLE = "a,b,label\n" + "".join(f"{i}.5,{i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(60))

EXTRAS = {
    "privacy": [f"{RUN} aggregator=private"],
    "wandb-report": [
        f"{RUN} hydra.run.dir=run",
        "python -c 'from pathlib import Path; from fedexp.reporting.report import Report; "
        "from fedexp.reporting.wandb_report import build; "
        'print(build(Report.read(Path()), "lab", "digits").title)\'',
    ],
    "hf": [
        f"{RUN} data=hf data.name=rows.csv data.input=[a,b] data.target=label data.test=null "
        "data.subset=null",
        f"{RUN} model=hf "
        "'model.config={hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
        "intermediate_size: 16, image_size: 8, patch_size: 4, num_channels: 1}'",
    ],
    "flwr": [
        f"{RUN} partition=flwr "
        "partition.partitioner._target_=flwr_datasets.partitioner.IidPartitioner"
    ],
    "flower": ["fedexp-flower app algorithm=fedavg rounds=1", "test -f app/README.md"],
    "timm": [f"{RUN} model=timm"],
    "optuna": [
        f"{RUN} -m hydra/sweeper=optuna hydra.sweeper.n_trials=1 search=lr data.validation=0.1 "
        "objective=validation/accuracy"
    ],
    "slurm": [f"{RUN} -m hydra/launcher=submitit_local seed=0"],
    "ray": [
        f"{RUN} -m hydra/launcher=ray seed=0 +hydra.launcher.ray.init.num_cpus=1 "
        "+hydra.launcher.ray.init.include_dashboard=false"
    ],
    "docs": ["bash clone/scripts/docs.sh"],
    "dev": ["cd clone && ruff check . && lint-imports && python -m pytest -q tests/config"],
}
"""Extra -> the commands that show what it is for, run in an empty folder with ``rows.csv``."""


def main() -> None:
    names = sys.argv[1:]
    if names == ["--list"]:
        print("\n".join(EXTRAS))
        return
    if unknown := sorted(set(names) - set(EXTRAS)):
        raise SystemExit(f"{unknown[0]}: no such extra; there are {', '.join(EXTRAS)}")
    for name in names or EXTRAS:
        with tempfile.TemporaryDirectory(prefix="extra-") as folder:
            check(name, Path(folder))
        print(f"{name}: works", flush=True)


def check(name: str, folder: Path) -> None:
    """Copy the clone, install the extra from the copy into ``folder``/venv, run its commands."""
    made = ("_build", "lessons", "outputs", "multirun")  # ignored by git, but not by ruff here
    left_out = shutil.ignore_patterns(".venv", ".git", ".*_cache", *made)
    shutil.copytree(ROOT, folder / "clone", ignore=left_out)
    (folder / "rows.csv").write_text(TABLE)
    binaries = folder / "venv" / "bin"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PATH": f"{binaries}:{environment['PATH']}", "FEDEXP_VENV": f"{folder}/venv"}
    install = f"{binaries}/python -m pip install -q './clone[{name}]'"
    for command in (f"{sys.executable} -m venv venv", install, *EXTRAS[name]):
        print(f"{name}: {command}", flush=True)
        if subprocess.run(command, shell=True, cwd=folder, env=environment).returncode:
            raise SystemExit(f"{name}: failed: {command}")


if __name__ == "__main__":
    main()
