from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, NonNegativeFloat, PositiveInt
from support.federations import compose

from fedexp.config.build import build
from fedexp.errors import InputError
from fedexp.runtime.plan import plan


class Record:
    def __init__(self, name: str) -> None:
        record(name)


class Toy:
    def __init__(self, mu: NonNegativeFloat, kind: Literal["a", "b"], depth: int | None) -> None:
        self.mu, self.kind, self.depth = mu, kind, depth


def toy(labels: Any, beta: Annotated[float, Field(gt=0)], count: PositiveInt = 3) -> list[Any]:
    return [labels, beta, count]


HERE = "test_schema"


def test_a_target_is_called_with_its_checked_arguments() -> None:
    built = build("loss", {"_target_": f"{HERE}.Toy", "mu": "0.5", "kind": "a", "depth": None}, Toy)
    assert (built.mu, built.kind, built.depth) == (0.5, "a", None)


class Reader:
    """A dataset of a user, with paths."""

    def __init__(self, root: Path, test: Path | None = None, note: str = "~") -> None:
        self.all = (root, test, note)


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    target = f"{__name__}.Reader"
    node = {"_target_": target, "root": "~/a", "test": "b/~", "note": "~/c"}
    assert build("data", node, Reader).all == (Path("/home/me/a"), Path("b/~"), "~/c")
    assert build("data", {"_target_": target, "root": "~"}, Reader).all[:2] == (
        Path("/home/me"),
        None,
    )
    with pytest.raises(InputError, match=r"^data\.root=~no one/a: there is no such user"):
        build("data", {"_target_": target, "root": "~no one/a"}, Reader)


def test_supplied_arguments_come_later() -> None:
    function = build("partition", {"_target_": f"{HERE}.toy", "beta": 2}, list, ("labels",))
    assert function(labels="x") == ["x", 2.0, 3]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": "Toy", "mu": -1, "kind": "a", "depth": 1}, "loss.mu=-1: should be greater"),
        (
            {"_target_": "Toy", "mu": 1, "kind": "c", "depth": 1},
            "loss.kind=c: should be 'a' or 'b'",
        ),
        ({"_target_": "Toy", "mu": "x", "kind": "a", "depth": 1}, "loss.mu=x: should be a valid"),
        ({"_target_": "Toy", "mu": 1, "kind": "a"}, "loss.depth: is missing"),
        (
            {"_target_": "Toy", "mu": 1, "kind": "a", "dpth": 1},
            "loss.dpth: unknown key; there are depth, kind, mu",
        ),
        ({"_target_": "Nobody"}, f"loss._target_={HERE}.Nobody: cannot be imported"),
    ],
)
def test_problems_are_one_line(node: dict[str, Any], message: str) -> None:
    node = node | {"_target_": f"{HERE}.{node['_target_']}"}
    with pytest.raises(InputError) as caught:
        build("loss", node, Toy)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_module_that_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that pip installed does not look there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"current folder is looked in after export PYTHONPATH="):
        build("model", {"_target_": "mynet.Network"}, object)
    monkeypatch.syspath_prepend("")
    with pytest.raises(InputError, match=r"\(No module named 'mynet'\)$"):
        build("model", {"_target_": "mynet.Network"}, object)


def test_a_node_without_target() -> None:
    with pytest.raises(InputError, match=r"loss\._target_: is missing; it names a class"):
        build("loss", {}, object)
    with pytest.raises(InputError, match=r"loss\._target_=\.mine\.Loss: must be written MODULE"):
        build("loss", {"_target_": ".mine.Loss"}, object)


called: list[str] = []


def record(name: str) -> str:
    called.append(name)
    return name


def unannotated(name):  # type: ignore[no-untyped-def]
    return record(name)


def one_of_two(name: str) -> Toy | str:
    return record(name)


@pytest.mark.parametrize("target", ["record", "unannotated", "one_of_two", "Record", "HERE"])
@pytest.mark.parametrize("supplied", [(), ("name",)])
def test_a_target_of_another_kind_is_not_called(target: str, supplied: tuple[str, ...]) -> None:
    """A config may name any function, for example one that runs a shell command."""
    node = {"_target_": f"{HERE}.{target}"} | ({} if supplied else {"name": "x"})
    with pytest.raises(
        InputError, match=rf"^loss\._target_={HERE}\.{target}: should be a subclass"
    ):
        build("loss", node, Toy, supplied)
    assert not called


def test_a_list_is_made_by_an_annotated_function() -> None:
    said = "should be a function that is annotated to return list, as in def record(...) -> list"
    with pytest.raises(InputError) as error:
        build("partition", {"_target_": f"{HERE}.record"}, list, ("name",))
    assert str(error.value) == f"partition._target_={HERE}.record: {said}"


@pytest.mark.parametrize(
    "group",
    [
        *(
            "head",
            "loss",
            "regularizer",
            "gradient",
            "personalization",
            "sampler",
            "aggregator",
            "faults",
            "compression",
            "download",
        ),
        *("coordination", "engine", "partition", "model", "data", "optimizer", "schedule"),
    ],
)
@pytest.mark.parametrize("target", ["subprocess.getoutput", "subprocess.Popen"])
def test_no_group_runs_a_command(group: str, target: str) -> None:
    with pytest.raises(InputError, match=rf"^{group}\._target_={target}: should be a "):
        plan(compose(f"{group}._target_={target}"))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=-1", "rounds=-1: should be greater than 0"),
        ("rounds=two", "rounds=two: should be a valid integer"),
        ("seed=-1", "seed=-1: should be greater than or equal to 0"),
        ("clients.per_round=0", "clients.per_round=0: should be greater than 0"),
        ("clients.count=5", "clients.per_round=10: must be at most clients.count=5"),
        ("local.epochs=0", "local.epochs=0: should be a number above 0"),
        ("local.grad_clip=-1", "local.grad_clip=-1: should be greater than 0"),
        ("local.epochs=10001", "local.epochs=10001: should be a number above 0 and at most 10000"),
        ("rounds=1000001", "rounds=1000001: should be less than or equal to 1000000"),
        ("clients.count=1000001", "clients.count=1000001: should be less than or equal to 1000000"),
        ("measure.personal.of=some", "measure.personal.of=some: should be 'all' or 'cohort'"),
        ("engine.threads=0", "engine.threads=0: should be 'auto' or greater than or equal to 1"),
        ("engine.threads={a:1}", "engine.threads={'a': 1}: should be 'auto' or a valid integer"),
        ("engine.compile=x", "engine.compile=x: should be 'reduce-overhead' or a valid boolean"),
        ("algorithm=fedadmm regularizer.eta=0", "regularizer.eta=0: should be greater than 0 or '"),
        ("engine.device=tpu", "engine.device=tpu: should be auto, cpu, cuda or an"),
        ("tracking.wandb.mode=maybe", "tracking.wandb.mode=maybe: should be"),
        ("optimizer.lr=inf", "optimizer.lr=inf: should be a finite number"),
        ("optimizer.weight_decay=nan", "optimizer.weight_decay=nan: should be a finite number"),
        ("clients.ram_gib=inf", "clients.ram_gib=inf: should be a finite number"),
        ("partition.long_tail=nan", "partition.long_tail=nan: should be a finite number"),
        ("measure.global.targets=[nan]", "measure.global.targets.0=nan: should be a finite number"),
        ("partition.beta=0", "partition.beta=0: should be greater than 0"),
        (
            "partition.long_tail=0.5",
            "partition.long_tail=0.5: should be greater than or equal to 1",
        ),
        (
            "objective=validation/accuracy",
            "objective=validation/accuracy: is not measured without data.validation=0.1; should be",
        ),
        ("objective=global/acc", "objective=global/acc: is not measured; should be one of "),
        (
            "objective=membership/loss_auc",
            "objective=membership/loss_auc: is not measured; should be one of ",
        ),
        (
            "objective=membership/lira_auc +measure=membership",
            "objective=membership/lira_auc: is not measured; should be one of ",
        ),
        ("optimizer.nesterov=true optimizer.momentum=0", "optimizer: Nesterov momentum requires"),
        ("optimizer.lr=0", "optimizer.lr=0: should be greater than 0"),
        ("download=topk", "download=topk: is chosen by compression@download=topk"),
        ("optimizer.momentum=1", "optimizer.momentum=1: should be less than 1"),
        (
            "optimizer.round_decay=1.1",
            "optimizer.round_decay=1.1: should be less than or equal to 1",
        ),
        (
            "+clients.per_rund=3",
            "clients.per_rund: unknown key; there are count, held_out, per_round",
        ),
        ("clients=30", "clients=30: is a group of keys; there are clients.count, clients.per_rou"),
        ("+mu=3", "mu: unknown key; there are aggregator, availability"),
        ("+optimizer.dampning=0.1", "optimizer.dampning: unknown key; there are dampening, differ"),
        ("+head.size=3", "head.size: unknown key; there are bias"),
        ("+engine.speed=3", "engine.speed: unknown key; there are none"),
        ("regularizer=proximal regularizer.mu=-1", "regularizer.mu=-1: should be greater"),
        ("model=conv2cifar", "model: conv2cifar does not fit inputs of 1x8x8"),
        ("model=torchvision model.name=resnet19", "model.name=resnet19: "),
        ("data=image_folder data.root=/nowhere", "data.root=/nowhere"),
    ],
)
def test_a_wrong_config_fails_in_one_line_before_data(
    override: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedexp.data.readers.digits.Digits.load", lambda *_: pytest.fail("data was loaded")
    )
    with pytest.raises(InputError) as caught:
        plan(compose(*override.split()))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_empty_list_is_refused_in_plain_words() -> None:
    with pytest.raises(InputError) as raised:
        plan(compose("measure.personal.kinds=[]"))
    assert str(raised.value) == "measure.personal.kinds=[]: should have at least 1 item"
