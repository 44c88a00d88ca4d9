"""The table of the clients, against what the federation itself knows of them."""

import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.federations import federate
from support.short_runs import NO_PICTURES

import fedexp
from fedexp.core.messages import Update
from fedexp.errors import Interrupted
from fedexp.runtime.federation import Federation

SMALL = ["clients.count=5", "clients.per_round=2", "local.epochs=1", "data.subset=150", "rounds=3"]
SMALL += ["model.hidden=[8]", "+measure=clients", "measure.clients.every=1"]


def test_a_row_for_each_client_that_has_trained() -> None:
    federation = federate(*SMALL, "seed=1")
    updates: list[Update] = []
    observe = federation.measures.observe

    def note(update: Update) -> None:
        updates.append(update)
        observe(update)

    federation.measures.observe = note  # type: ignore[method-assign]
    for round in (1, 2, 3):
        table = dict(federation.run_round(round).tables["clients"])
        trained = sorted({update.client for update in updates})
        own = {client: [u for u in updates if u.client == client] for client in trained}
        data, store = federation.data, federation.store
        assert table["client"] == trained == store.clients_with_model
        assert table["samples"] == [data.clients[c].num_samples for c in trained]
        counts = data.class_counts
        assert table["classes"] == [sum(n > 0 for n in counts[c].tolist()) for c in trained]
        assert table["turns"] == [len(own[c]) for c in trained]
        assert table["steps"] == [sum(u.steps for u in own[c]) for c in trained]
        assert table["upload_bytes"] == [sum(u.nbytes for u in own[c]) for c in trained]
        assert table["loss"] == [own[c][-1].metrics["loss"] for c in trained]
        ((inputs, labels),) = data.test.batches(len(data.test))
        for client, accuracy in zip(trained, table["accuracy_whole"], strict=True):
            federation.module.eval().load(store.model(client))
            with torch.no_grad():
                right = federation.module(inputs).argmax(dim=1) == labels
            assert accuracy == pytest.approx(right.double().mean().item())
    assert len(trained) > 2
    assert max(table["turns"]) > 1


def test_columns_follow_the_kinds_and_unscored_models_are_empty() -> None:
    kinds = ["measure.clients.kinds=[local]", "measure.clients.of=cohort", "measure.personal=null"]
    federation = federate(*SMALL, *kinds)
    tables = [dict(federation.run_round(round).tables["clients"]) for round in (1, 2)]
    assert list(tables[0])[-1] == "accuracy_local"
    assert sum(name.startswith("accuracy") for name in tables[0]) == 1
    scored = set(federation.store.clients_with_model)
    for client, accuracy in zip(tables[1]["client"], tables[1]["accuracy_local"], strict=True):
        assert (accuracy is None) == (client not in scored)


def test_every_and_the_last_round() -> None:
    federation = federate(*SMALL, "measure.clients.every=2")
    tables = [federation.run_round(round).tables for round in (1, 2, 3)]
    assert ["clients" in each for each in tables] == [False, True, True]
    # turns of rounds without a table count
    assert sum(tables[2]["clients"]["turns"]) == 6


QUIET = ["algorithm=fedavg", "tracking.wandb.mode=disabled", "tracking.progress=false"]
QUIET += NO_PICTURES


def test_an_interrupted_run_ends_with_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedexp.run([*SMALL, *QUIET, f"hydra.run.dir={tmp_path / 'whole'}"])
    run_round = Federation.run_round

    def interrupted(federation: Federation, round: int) -> Any:
        if round == 2:
            signal.raise_signal(signal.SIGINT)
        return run_round(federation, round)

    folder = tmp_path / "interrupted"
    monkeypatch.setattr(Federation, "run_round", interrupted)
    with pytest.raises(Interrupted):
        fedexp.run([*SMALL, *QUIET, f"hydra.run.dir={folder}"])
    monkeypatch.undo()
    table = folder / "clients.csv"
    written = table.read_text()
    table.write_text(written + written.splitlines()[-1].replace("2,", "3,", 1) + "\n")
    fedexp.run([*SMALL, *QUIET, f"resume={folder}"])
    assert table.read_text() == (whole.folder / "clients.csv").read_text()
    frame = pd.read_csv(table)
    assert frame.groupby("round")["turns"].sum().tolist() == [2, 4, 6]


@pytest.mark.slow
def test_two_processes_write_the_table_of_one(tmp_path: Path) -> None:
    tables = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        overrides = ["engine.device=cpu", f"engine.devices={processes}", f"hydra.run.dir={folder}"]
        fedexp.run([*SMALL, *QUIET, *overrides])
        tables.append(pd.read_csv(folder / "clients.csv"))
    pd.testing.assert_frame_equal(*tables, rtol=1e-3, atol=0.02)
    exact = ["round", "client", "samples", "classes", "turns", "steps", "upload_bytes"]
    assert tables[0][exact].equals(tables[1][exact])
