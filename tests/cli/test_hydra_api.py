"""What two versions of Hydra do differently; the tests run with both."""

import pickle

from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from fedexp.cli import hydra_api
from fedexp.cli.command import config_folder


def test_a_job_of_a_table_is_composed_with_another_sweeper() -> None:
    """The cells of a table have no table in their sweeper; a worker gets the loader pickled."""
    with hydra_api.initialize(config_folder()):
        loader = GlobalHydra.instance().config_loader()
        typed = ["experiment=fednh/table1"]
        sweep = loader.load_configuration("config", typed, RunMode.MULTIRUN)
        context = hydra_api.for_launchers(HydraContext(loader, None))  # type: ignore[arg-type]
        sent = pickle.loads(pickle.dumps(context.config_loader))
        job = sent.load_sweep_config(sweep, ["experiment=fednh/tiny_dir03", "rounds=7"])
    assert (job.rounds, job.hydra.runtime.choices.experiment) == (7, "fednh/tiny_dir03")
    assert sent.get_search_path() is not None


def test_a_typed_rate_of_a_contest_is_no_key_of_its_jobs() -> None:
    """The grid of the table has a learning rate; the sweeper of a cell has an empty grid."""
    typed = ["experiment=leaderboard/digits", "hydra.sweeper.tune.common={optimizer.lr:'0.5'}"]
    with hydra_api.initialize(config_folder()):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration("config", typed, RunMode.MULTIRUN)
        assert sweep.hydra.sweeper.tune.common == {"optimizer.lr": "0.5"}
        job = hydra_api.job_config(loader, sweep, ["experiment=leaderboard/digits_dir03"])
    assert job.hydra.sweeper.tune.common == {}


def test_a_resolver_can_be_registered_twice() -> None:
    for number in (1, 2):
        hydra_api.register_resolver("number_of_a_test", lambda number=number: number)
    assert OmegaConf.create({"a": "${number_of_a_test:}"}).a == 2
