"""Which configs can run on nodes."""

from fedexp.config.compatibility.traits import SIMULATED_TIME, Need
from fedexp.config.schema import Config
from fedexp.coordination.base import Coordination
from fedexp.errors import InputError
from fedexp.faults.base import Faults
from fedexp.measures.client_scores import PersonalMeasure
from fedexp.measures.configured import build_measures
from fedexp.runtime.plan import Plan

_NOT_HERE = frozenset({Need.ALL_CLIENTS, Need.SIMULATION})


def without_simulated_measures(config: Config) -> tuple[Config, list[str]]:
    """Remove the measures that need a simulation; return the config and the removed names."""
    measures = build_measures(config.measure)
    left_out = sorted(name for name, each in measures.items() if each.needs & _NOT_HERE)
    kept = {name: node for name, node in config.measure.items() if name not in left_out}
    return config.model_copy(update={"measure": kept}), left_out


def check_on_nodes(plan: Plan, own_data: bool) -> None:
    """Raise InputError if the config works only in a simulation, not with clients on nodes."""
    config = plan.config
    table = [
        ("engine.devices", config.engine.processes > 1, "should be 1: a node has one client"),
        ("clients.held_out", config.clients.held_out > 0, "should be 0: each client has a node"),
        ("faults", type(plan.faults) is not Faults, "are simulated; should be none on Flower"),
        ("system", SIMULATED_TIME in plan.system.traits, "should be none on Flower"),
        ("coordination", type(plan.coordination) is not Coordination, "should be synchronous"),
        ("compression", not plan.upload.is_none, "should be none on Flower"),
        ("compression@download", not plan.download.is_none, "should be none on Flower"),
        ("partition.shift.kinds", bool(config.partition.shift.kinds), "should be [] on Flower"),
        ("partition", own_data and not _is_iid(config), "should be iid with --own-data"),
    ]
    for key, is_wrong, advice in table:
        if is_wrong:
            raise InputError(f"{key}: {advice}")
    for socket, part in plan.sockets.by_name().items():
        for need in _NOT_HERE & part.needs.keys():
            raise InputError(f"{socket}: needs {need}, which a federation on Flower lacks")
    for name, measure in plan.measures.items():
        if isinstance(measure, PersonalMeasure) and measure.size is not None:
            raise InputError(f"measure.{name}.samples={measure.size}: should be null on Flower")


def _is_iid(config: Config) -> bool:
    return config.partition.node == {"_target_": "fedexp.data.partitions.iid"}
