"""Whole runs from Python: every shipped option and preset, and what lies in the folder."""

import errno
import json
import logging
import math
import time
from pathlib import Path

import pytest
import torch
from support.federations import FEW_STEPS, MATCHING, compose, federate, load
from support.hugging_face_sets import offline, write_saved
from support.image_sets import IMAGE_SETS
from support.natural_users import (
    PLAY_OPTIONS,
    SMALL_LSTM,
    write_femnist,
    write_play,
    write_shakespeare,
)
from support.partner_options import NEED_BATCH_NORM, PARTNERS
from support.tables import tabular_options, write_table
from support.torchvision_files import NAMES, WRITE, Name, accept_any_checksum
from support.wandb_log import history, run_files

import fedexp
from fedexp.cli.command import config_folder
from fedexp.config.launch import Launch
from fedexp.distributed.wire import decode, encode
from fedexp.errors import InputError
from fedexp.reporting.papers.published import checked_rows
from fedexp.reporting.runs import read_run
from fedexp.runtime.execution import _run_as_rank
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.state.files import load_tensors
from fedexp.tracking.jsonl import as_frame
from fedexp.tracking.summary import digest

CONF = Path(config_folder())
TINY = [
    "rounds=1",
    "clients.count=6",
    "clients.per_round=2",
    "local.epochs=1",
    "tracking.wandb.mode=disabled",
    "tracking.progress=false",
]


def options(*groups: str) -> list[str]:
    """Every option of these groups, as an override."""
    return [
        f"{group}={path.relative_to(CONF / group).with_suffix('').as_posix()}"
        for group in groups
        for path in sorted((CONF / group).rglob("*.yaml"))
    ]


SMALL_GROUPS = [
    "algorithm",
    "head",
    "loss",
    "regularizer",
    "gradient",
    "personalization",
    "sampler",
]
SMALL_GROUPS += ["aggregator", "faults", "compression", "optimizer", "schedule", "engine"]
SMALL_GROUPS += ["partition"]
MEASURES = [f"+{each}" for each in options("measure")]
SETS_AT_HAND = [each for each in options("data") if each.removeprefix("data=") not in NAMES]


@pytest.fixture(scope="session")
def natural_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Tiny files for the datasets with natural users, and the overrides that find them."""
    folder = tmp_path_factory.mktemp("natural_sets")
    write_femnist(folder / "femnist")
    write_shakespeare(folder / "shakespeare")
    write_play(folder / "play.txt")
    users = ["partition=natural", "clients.count=3", "clients.per_round=2"]
    return {
        "data=femnist": [f"data.root={folder / 'femnist'}", *users],
        "data=shakespeare": [f"data.root={folder / 'shakespeare'}", *users, *SMALL_LSTM],
        "data=text": [f"data.path={folder / 'play.txt'}", *users, *PLAY_OPTIONS, *SMALL_LSTM],
        "data=tabular": [*tabular_options(write_table(folder)), *users],
    }


def run_in(folder: Path, *overrides: str) -> fedexp.RunResult:
    return fedexp.run([f"hydra.run.dir={folder}", *TINY, *overrides])


FEW_SHOT = [f"measure.fewshot.{key}=2" for key in ("shots", "queries", "episodes")]
FEW_SHOT += ["objective=global/fewshot_accuracy", "measure.personal=null"]


@pytest.fixture(scope="session")
def image_set_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny trees of these sets."""
    folder = tmp_path_factory.mktemp("image_sets")
    for write in IMAGE_SETS.values():
        write(folder)
    return folder


@pytest.fixture
def image_sets(image_set_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees where they are looked for by default."""
    accept_any_checksum(monkeypatch)
    monkeypatch.setenv("FEDEXP_DATA", str(image_set_folder))


OF_EXTRAS = ("data=hf", "partition=flwr")
"""Options that need a package that is not installed with fedexp; they have a test of their own."""

ALWAYS = [
    each for each in options(*SMALL_GROUPS) + MEASURES + SETS_AT_HAND if each not in OF_EXTRAS
]


@pytest.mark.matrix
@pytest.mark.usefixtures("image_sets")
@pytest.mark.parametrize("override", ALWAYS)
def test_every_option_runs_a_tiny_round(
    override: str, tmp_path: Path, image_tree: Path, natural_sets: dict[str, list[str]]
) -> None:
    images = ["data=image_folder", f"data.root={image_tree}", r"data.user_pattern='(u\d)'"]
    needs = PARTNERS | {
        "data=image_folder": images,
        "partition=natural": images,
        "data=fc100": FEW_SHOT,
        "data=fed_isic": ["data.short_side=8", "data.image_size=8"],
        "partition=legacy_dirichlet": ["data=spiral", "data.subset=120", "partition.min_size=1"],
        **dict.fromkeys(MATCHING, FEW_STEPS),
        # digits would leave a last batch of one sample
        **{each: [*images[:2], "model=resnet10", "model.norm=batch"] for each in NEED_BATCH_NORM},
        **natural_sets,
    }
    overrides = [override, *needs.get(override, [])]
    result = run_in(tmp_path / "run", *overrides)
    assert len(result.metrics) == 1
    assert 0 <= result.objective(compose(*overrides).objective) <= 1


def test_the_options_of_extras_run_a_tiny_round(tmp_path: Path) -> None:
    with offline(tmp_path / "hub") as datasets:
        write_saved(datasets, tmp_path / "saved")
        columns = ["data.input=image", "data.target=label"]
        hf = run_in(tmp_path / "hf", "data=hf", f"data.name={tmp_path / 'saved'}", *columns)
        partitioner = "partition.partitioner._target_=flwr_datasets.partitioner.IidPartitioner"
        flwr = run_in(tmp_path / "flwr", "partition=flwr", partitioner)
    assert len(hf.metrics) == len(flwr.metrics) == 1


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_every_download_runs_a_tiny_round(
    name: Name, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_checksum(monkeypatch)
    (tmp_path / "data").mkdir()
    WRITE[name](tmp_path / "data")
    result = run_in(tmp_path / "run", f"data={name}", f"data.root={tmp_path / 'data'}")
    assert result.metrics["train/loss"].iloc[0] > 0


SMALL_MODELS = {
    "model=custom": ["model._target_=torch.nn.Flatten"],
    "model=mixed": ["personalization=local"],
    "model=hf": ["model.config={hidden_size: 12, num_hidden_layers: 1, intermediate_size: 8}"],
}


@pytest.mark.matrix
@pytest.mark.parametrize("override", options("model"))
def test_every_model_runs_a_tiny_round(
    override: str, tmp_path: Path, image_tree: Path, natural_sets: dict[str, list[str]]
) -> None:
    data = ["data=image_folder", f"data.root={image_tree}", "data.subset=8", "partition=iid"]
    if override == "model=char_lstm":
        data = ["data=text", *natural_sets["data=text"], override]
    data += SMALL_MODELS.get(override, [])
    result = run_in(tmp_path / "run", override, *data, "clients.count=2")
    assert result.metrics["train/loss"].iloc[0] > 0


# A table's first cell is the cell itself.
NATURAL = {f"experiment=fedgela/{each}": "data=femnist" for each in ("femnist", "table11")}
NATURAL["experiment=fedgela/shakespeare"] = "data=shakespeare"
WITH_WEIGHTS = ("experiment=fedgela/isic", "experiment=fedgela/table3")
OFTEN = ("cifar10", "fednh/cifar10_dir03", "fednh/spiral", "fedsc/cifar10_nid2")
OFTEN += ("fedgela/cifar10_p10c2", "fedptr/fmnist_dir001", "hics/fmnist_setting1")
EXPERIMENTS = [
    override
    if override.removeprefix("experiment=") in OFTEN
    else pytest.param(override, marks=pytest.mark.slow)
    for override in options("experiment")
]


@pytest.mark.matrix
@pytest.mark.usefixtures("image_sets")
@pytest.mark.parametrize("override", EXPERIMENTS)
def test_every_experiment_fits_and_runs_a_tiny_round(
    override: str, tmp_path: Path, image_tree: Path, natural_sets: dict[str, list[str]]
) -> None:
    at_hand = ["model.weights=null"] if override in WITH_WEIGHTS else []
    if override in NATURAL:
        at_hand = natural_sets[NATURAL[override]]
    if override.endswith(("_readings", "_tuning")):  # too few samples to hold some out
        at_hand = ["data.validation=0", "objective=global/accuracy"]
    if "factorial/cifar10" in override:
        at_hand = ["data.validation=0", "objective=global/accuracy", "data.subset=null"]
    config = compose(override, *at_hand)
    assert plan(config).feature_dim > 0
    smaller = ["clients.count=5", "partition=iid"]
    images = ["data=image_folder", f"data.root={image_tree}", *smaller]
    images += ["data.mean=null", "data.std=null", "measure.global.targets=[0.0001]"]
    if "spiral" in override:
        images = []
    elif "leaderboard/digits" in override or "factorial/digits" in override:
        images = ["clients.count=10"]  # a client for each class
    elif "fc100" in override:
        images = [*smaller, *FEW_SHOT, "data.subset=60"]
    elif override in NATURAL:
        images = []
    result = run_in(tmp_path / "run", override, *images, *at_hand)
    measured = set(result.summary["metrics"])
    # Rounds to a target may not be reached; a membership attack is a row's own override.
    elsewhere = ("rounds_to/", "membership/")
    rows = checked_rows(config.paper)
    published = {row.metric for row in rows if not row.metric.startswith(elsewhere)}
    assert published <= measured


def test_batchnorm_on_maps_of_several_pixels_trains_on_one_sample(image_tree: Path) -> None:
    images = ["data=image_folder", f"data.root={image_tree}", "data.subset=6", "partition=iid"]
    single = [*images, "clients.count=2", "clients.per_round=1", "local.batch_size=2"]
    federation = federate(*single, "model=resnet10", "model.norm=batch")  # 4x4 maps
    assert federation.engine.resources.last_batch.lengths(3, 2) == [2, 1]
    federation = federate(*single, "model=torchvision")
    assert federation.engine.resources.last_batch.lengths(3, 2) == [3]


def test_what_a_rank_returns_can_be_sent_to_the_program_that_started_it(tmp_path: Path) -> None:
    """FedAMP's message is a different one for each client, which a function makes."""
    config = compose(*TINY, "algorithm=fedamp", "engine.device=cpu")
    returned = _run_as_rank(config, tmp_path / "run", Launch([], {}))
    *_, message = decode(encode(returned), torch.device("cpu"))
    sent = returned[-1].weights
    assert all(torch.equal(message.weights[name], weight) for name, weight in sent.items())


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_in(
        folder,
        "rounds=3",
        "tracking.wandb.mode=offline",
        "tracking.tensorboard=true",
        "measure.prototypes.every=2",
        "measure.personal.every=2",
    )
    assert result.folder == folder
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        "metrics.jsonl",
        "summary.json",
        "figures/heatmap_partition_0000.png",
        "figures/heatmap_prototype_similarity_0002.png",
        "figures/heatmap_prototype_similarity_0003.png",
        "checkpoints/final.pt",
        ".hydra/config.yaml",
        ".hydra/hydra.yaml",
        ".hydra/overrides.yaml",
    } <= found
    assert any(name.startswith("tensorboard/") for name in found)

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert "personal/accuracy_local" not in lines[0]
    assert "personal/accuracy_local" in lines[1]

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["global/accuracy"]["final"] == lines[-1]["global/accuracy"]
    assert summary["seed"] == 0
    weights = load_tensors(folder / "checkpoints" / "final.pt")
    assert summary["weights_digest"] == digest(weights) == digest(result.model.weights)
    assert result.metrics.equals(as_frame((folder / "metrics.jsonl").read_bytes()))


def test_an_unfinished_run_from_python_is_read_with_its_choices(tmp_path: Path) -> None:
    finished = run_in(tmp_path / "run", "algorithm=fednh").summary
    (tmp_path / "run" / "summary.json").unlink()
    assert read_run(tmp_path / "run").choices == finished["choices"]


def test_wandb_holds_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_in(folder, "rounds=3", "tracking.wandb.mode=offline", "measure.prototypes.every=2")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (run,) = run_files(folder)
    logged = {int(row["round"]): row for row in history(run)}
    assert sorted(logged) == [0, 1, 2, 3]
    for line in lines:
        row = logged[line["round"]]
        for name, value in line.items():
            if name != "global/per_class_accuracy":
                assert row[name] == pytest.approx(value), name
    assert logged[0]["heatmap/partition/_type"] == "image-file"
    assert logged[2]["heatmap/prototype_similarity/_type"] == "image-file"
    assert "heatmap/prototype_similarity/_type" not in logged[1]


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    digests = [
        run_in(tmp_path / name, f"seed={seed}").summary["weights_digest"]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_in(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="already holds a run"):
        run_in(tmp_path / "run", "seed=5")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plain = [each for each in TINY if "wandb" not in each]
    first = fedexp.run([f"hydra.run.dir={folder}", *plain, "rounds=2"])
    time.sleep(1.1)  # W&B names folders by the second
    longer = fedexp.run([f"hydra.run.dir={folder}", *plain, "rounds=3", f"resume={folder}"])
    assert longer.metrics["round"].tolist() == [1, 2, 3]
    assert longer.metrics.iloc[:2].equals(first.metrics)
    assert longer.summary["rounds"] == 3
    assert longer.summary["wall_time_s"] > first.summary["wall_time_s"]
    before, now = run_files(folder)
    assert before.name == now.name  # one id
    assert [row["round"] for row in history(now)] == [0, 1, 2, 3]
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert left == ["final.pt", "round_0002", "round_0003"]


def test_a_run_that_goes_on_has_no_model_of_its_earlier_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run_in(folder, "data.validation=0.1")
    longer = ["data.validation=0.1", "rounds=2", f"resume={folder}"]

    def killed(self: Federation, round: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Federation, "run_round", killed)
        with pytest.raises(KeyboardInterrupt):
            run_in(folder, *longer)
    for model in ("final", "best"):
        with pytest.raises(InputError, match=f"has no model {model}; .* it is not finished"):
            fedexp.load(folder, model)
    run_in(folder, *longer)
    assert fedexp.load(folder).name == f"final global model of {folder}"


def test_an_extended_run_says_which_part_depends_on_the_number_of_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for sampler in ("random", "hics"):
        folder, kept = tmp_path / sampler, [f"sampler={sampler}", "measure.personal=null"]
        run_in(folder, *kept)
        caplog.clear()
        for rounds in (2, 3):
            longer = run_in(folder, *kept, f"rounds={rounds}", f"resume={folder}")
            begins = f"rounds={rounds}: the run began with"
            said = [each for each in caplog.messages if each.startswith(begins)]
            assert longer.summary["warnings"] == said
            assert len(said) == (sampler == "hics")
            assert all(
                "rounds=1, on which its sampler (fedexp.samplers.hics.HiCS) de" in s for s in said
            )


def test_without_checkpoints_nothing_is_kept_and_nothing_extended(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_in(folder, "checkpoint.keep=0")
    before = (folder / "metrics.jsonl").read_bytes()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["final.pt"]
    with pytest.raises(InputError, match="is finished and has no checkpoint to resume"):
        run_in(folder, "checkpoint.keep=0", "rounds=2", "resume=auto")
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("fedexp.tracking.jsonl.JsonLines.log", full)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
            run_in(folder)
    assert len(run_in(folder, f"resume={folder}").metrics) == 1


def test_the_final_model_is_the_global_one_in_eval_mode(tmp_path: Path) -> None:
    result = run_in(tmp_path / "run")
    assert not result.model.training
    logits = result.model(torch.zeros(2, 1, 8, 8))
    assert logits.shape == (2, 10)


def test_a_run_says_if_sixteen_bits_would_be_faster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On which machines and for which models: tests/engines/test_layout.py."""
    monkeypatch.setattr("fedexp.runtime.execution.gains_from_bf16", lambda *_: True)
    with caplog.at_level(logging.INFO):
        run_in(tmp_path / "run", "measure.personal=null")
    assert caplog.messages.count("engine.precision=bf16-mixed would train faster on this CPU") == 1


def test_objective_is_the_last_value_or_nan(tmp_path: Path) -> None:
    result = run_in(tmp_path / "run", "rounds=3", "measure.global.every=2", "measure.personal=null")
    assert result.objective("global/accuracy") == result.metrics["global/accuracy"].iloc[-1]
    assert math.isnan(result.objective("personal/accuracy_local"))


def test_a_config_group_from_outside(tmp_path: Path) -> None:
    mine = tmp_path / "conf" / "experiment" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(
        "# @package _global_\n"
        "defaults:\n"
        "  - override /algorithm: fedprox\n"
        "  - override /aggregator: uniform\n"
        "rounds: 2\n"
        "regularizer:\n"
        "  mu: 0.5\n"
    )
    overrides = [each for each in TINY if not each.startswith("rounds")]
    folder = tmp_path / "run"
    result = fedexp.run(
        ["experiment=mine", f"hydra.run.dir={folder}", *overrides], config_dir=mine.parent.parent
    )
    assert len(result.metrics) == 2
    config = (folder / ".hydra" / "config.yaml").read_text()
    assert "Proximal" in config
    assert "mu: 0.5" in config
    assert "weighting: uniform" in config


def test_long_tail_and_subset_shrink_the_training_data(tmp_path: Path) -> None:
    def held(*overrides: str) -> list[int]:
        return load(*overrides).class_counts.sum(0).tolist()

    assert sum(held()) == 1437
    assert sum(held("data.subset=500")) == 500
    thinned = held("partition.long_tail=10", "partition=iid")
    assert max(held()) == 146
    assert thinned[0] == held()[0]  # 146 wanted, all of the 142 there are
    assert thinned[-1] == 14


def test_the_preview_draws_a_picture(tmp_path: Path) -> None:
    from fedexp.runtime.execution import draw_partition

    picture, table = draw_partition(compose("partition.beta=0.1"), tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = table.read_text().splitlines()
    assert lines[0] == "client,0,1,2,3,4,5,6,7,8,9"
    rows = [[int(cell) for cell in line.split(",")] for line in lines[1:]]
    assert [row[0] for row in rows] == list(range(20))
    assert sum(sum(row[1:]) for row in rows) == 1437
