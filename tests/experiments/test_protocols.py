"""Every preset of a paper against that paper's protocol, typed in here: a changed number fails."""

from typing import Any

import pytest
from federations import compose

from fedexp.config.schema import Config

Values = dict[str, Any]

# What all cells of a paper share.
PROTOCOLS: dict[str, Values] = {
    "fednh": {
        "rounds": 200,
        "clients.count": 100,
        "clients.per_round": 10,
        "local.epochs": 5,
        "local.batch_size": 64,
        "local.grad_clip": 10,
        "optimizer._target_": "torch.optim.SGD",
        "optimizer.lr": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-5,
        "optimizer.round_decay": 0.99,
        "aggregator.weighting": "uniform",
        "data.name": "cifar10",
        "data.augment": "crop_flip",
        "data.mean": [0.4914, 0.4822, 0.4465],
        "data.std": [0.2023, 0.1994, 0.2010],
        "partition._target_": "fedexp.data.partitions.dirichlet_fednh",
        "partition.beta": 0.3,
        "model._target_": "fedexp.models.cnn.conv2cifar",
        "sampler.weighting": "uniform",
        "evaluation.every": 1,
        "evaluation.personal": "all",
        "evaluation.personal_every": 200,
    },
    "fedsc": {
        "rounds": 100,
        "clients.count": 10,
        "clients.per_round": 10,
        "local.epochs": 10,
        "local.batch_size": 64,
        "local.grad_clip": None,
        "optimizer._target_": "torch.optim.SGD",
        "optimizer.lr": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-5,
        "optimizer.round_decay": 1,
        "aggregator.weighting": "samples",
        "data.name": "cifar10",
        "data.augment": "crop_flip_mean",
        "partition._target_": "fedexp.data.partitions.dirichlet_recut",
        "partition.beta": 0.2,
        "partition.draw_seed": 66,
        "partition.group": 10,
        "partition.min_share": 0.5,
        "partition.long_tail": None,
        "model._target_": "fedexp.models.resnet.resnet",
        "model.layers": [1, 1, 1, 1],
        "model.norm": "batch",
        "model.init": "layer_default",
        "head._target_": "fedexp.heads.linear.Linear",
        "head.bias": True,
        "evaluation.every": 1,
        "evaluation.targets": [0.2, 0.4, 0.8],
    },
    "fedgela": {
        "rounds": 50,
        "clients.count": 10,
        "clients.per_round": 10,
        "local.epochs": 10,
        "local.batch_size": 100,
        "local.grad_clip": 20,
        "optimizer._target_": "torch.optim.SGD",
        "optimizer.lr": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
        "optimizer.round_decay": 1,
        "aggregator.weighting": "samples",
        "data.name": "cifar10",
        "data.augment": "none",
        "partition._target_": "fedexp.data.partitions.dirichlet",
        "partition.balance": True,
        "partition.min_size": 0,
        "model._target_": "fedexp.models.resnet.resnet",
        "model.layers": [2, 2, 2, 2],
        "model.norm": "batch",
        "model.feature_dim": 84,
        "model.projection": "mlp",
        "model.init": "kaiming_fan_out",
        "evaluation.every": 1,
        "evaluation.personal_every": 1,
    },
    "fedptr": {
        "rounds": 400,
        "clients.count": 10,
        "clients.per_round": 10,
        "local.epochs": 1,
        "local.batch_size": 500,
        "local.grad_clip": 10,
        "optimizer._target_": "torch.optim.SGD",
        "optimizer.lr": 0.01,
        "optimizer.momentum": 0,
        "optimizer.weight_decay": 0,
        "optimizer.round_decay": 1,
        "data.name": "cifar10",
        "data.augment": "half_crop_flip",
        "data.mean": [0.4914, 0.4822, 0.4465],
        "data.std": [0.2023, 0.1994, 0.2010],
        "partition._target_": "fedexp.data.partitions.legacy_dirichlet",
        "partition.beta": 0.01,
        "partition.min_size": 2500,
        "partition.draw_seed": 0,
        "model._target_": "fedexp.models.convnet.convnet",
        "head._target_": "fedexp.heads.linear.Linear",
        "head.bias": True,
        "sampler.weighting": "uniform",
        "evaluation.every": 1,
    },
    "hics": {
        "local.epochs": 2,
        "local.batch_size": 64,
        "local.grad_clip": None,
        "optimizer.lr": 0.001,
        "optimizer.weight_decay": 0,
        "optimizer.round_decay": 1,
        "aggregator.weighting": "uniform",
        "data.augment": "none",
        "partition._target_": "fedexp.data.partitions.multi_alpha",
        "partition.parts": "class_balanced",
        "partition.balance": True,
        "partition.min_share": 0.2,
        "partition.max_tries": 1000,
        "model.init": "xavier_relu",
        "head._target_": "fedexp.heads.linear.Linear",
        "head.bias": True,
        "sampler.signal": "auto",
        "sampler.lam": 0.1,
        "sampler.clusters": None,
        "sampler.linkage_on": "rows",
        "sampler.refresh": "always",
        "sampler.warm_up_order": "random",
        "sampler.angle_on": "signal",
        "evaluation.every": 1,
    },
}

# What each cell changes.
_FEDNH_CIFAR100: Values = {
    "data.name": "cifar100",
    "data.mean": [0.507, 0.487, 0.441],
    "data.std": [0.267, 0.256, 0.276],
}
_FEDSC_CIFAR100: Values = {"data.name": "cifar100", "evaluation.targets": [0.2, 0.4, 0.6]}
_NID2: Values = {
    "partition._target_": "fedexp.data.partitions.nid2",
    "partition.sharing": "equal_sizes",
    **{f"partition.{key}": None for key in ("beta", "draw_seed", "group", "min_share")},
    "clients.count": 6,
    "clients.per_round": 6,
}
_IMAGENET: Values = {"data.mean": [0.485, 0.456, 0.406], "data.std": [0.229, 0.224, 0.225]}
_TINY: Values = {
    "data._target_": "fedexp.data.tiny_imagenet.TinyImageNet",
    "data.name": None,
    "data.image_size": 64,
    "data.class_order": "sorted",
    **_IMAGENET,
}
_FEDNH_TINY: Values = {
    **_TINY,
    "optimizer.weight_decay": 1e-3,
    "model._target_": "fedexp.models.resnet.resnet",
    "model.layers": [2, 2, 2, 2],
    "model.norm": "group",
    "model.groups": 2,
    "model.norm_in_blocks": True,
    "model.stem": "cifar",
    "model.feature_dim": None,
    "model.init": "layer_default",
}
_FEDSC_TINY: Values = {
    **_TINY,
    "model._target_": "fedexp.models.mobilenet.mobilenet_v2",
    "model.layers": None,
    "model.norm": "batch",
    "model.stem": "imagenet",
    "model.last_channel": 512,
    "model.feature_dim": None,
    "model.init": "default",
    "evaluation.targets": [0.2, 0.4],
}
_FEDSC_FC100: Values = {
    "data._target_": "fedexp.data.fc100.FC100",
    "data.name": None,
    "data.unseen": "test",
    "data.mean": None,
    "objective": "global/fewshot_accuracy",
    "evaluation.targets": [],
    "evaluation.personal": "off",
    "evaluation.fewshot": {"ways": 5, "shots": 5, "queries": 15, "episodes": 600},
}
_FEDPTR_FMNIST: Values = {
    "data.name": "fashion_mnist",
    "rounds": 200,
    "data.mean": [0.1307],
    "data.std": [0.3081],
    "data.augment": "none",
}
_FEDPTR_CIFAR100: Values = {
    "data.name": "cifar100",
    "rounds": 1000,
    "data.mean": [0.5071, 0.4867, 0.4408],
    "data.std": [0.2675, 0.2565, 0.2761],
}
_DIR004: Values = {"partition.beta": 0.04}
CELLS: dict[str, Values] = {
    "fednh/cifar10_dir03": {},
    "fednh/cifar10_dir10": {"partition.beta": 1},
    "fednh/cifar100_dir03": _FEDNH_CIFAR100,
    "fednh/cifar100_dir10": _FEDNH_CIFAR100 | {"partition.beta": 1},
    "fedsc/cifar10_dir005": {"partition.beta": 0.05},
    "fedsc/cifar10_dir02": {},
    "fedsc/cifar10_dir05": {"partition.beta": 0.5},
    "fedsc/cifar10_dir02_l1": {"loss.distance": "l1"},
    "fedsc/cifar10_lt": {"partition.long_tail": 10},
    "fedsc/cifar10_nid2": _NID2,
    "fedsc/cifar100_dir005": _FEDSC_CIFAR100 | {"partition.beta": 0.05},
    "fedsc/cifar100_dir02": _FEDSC_CIFAR100,
    "fedsc/cifar100_lt": _FEDSC_CIFAR100 | {"partition.long_tail": 10},
    "fedsc/cifar100_nid2": _FEDSC_CIFAR100 | _NID2,
    "fednh/tiny_dir03": _FEDNH_TINY,
    "fednh/tiny_dir10": _FEDNH_TINY | {"partition.beta": 1},
    "fedsc/tiny_dir005": _FEDSC_TINY | {"partition.beta": 0.05},
    "fedsc/tiny_dir02": _FEDSC_TINY,
    "fedsc/tiny_lt": _FEDSC_TINY | {"partition.long_tail": 10},
    "fedsc/tiny_nid2": _FEDSC_TINY | _NID2,
    "fedsc/fc100_dir005": _FEDSC_FC100 | {"partition.beta": 0.05},
    "fedsc/fc100_dir02": _FEDSC_FC100,
    "fedsc/fc100_nid2": _FEDSC_FC100 | _NID2,
    "fedptr/tiny_dir001": _TINY | {"rounds": 1000, "data.class_order": "wnids"},
    "fedptr/cifar10_dir001": {},
    "fedptr/cifar10_dir004": _DIR004,
    "fedptr/fmnist_dir001": _FEDPTR_FMNIST,
    "fedptr/fmnist_dir004": _FEDPTR_FMNIST | _DIR004,
    "fedptr/cifar100_dir001": _FEDPTR_CIFAR100,
    "fedptr/cifar100_dir004": _FEDPTR_CIFAR100 | _DIR004,
    "fedptr/cifar100_dir001_40clients": _FEDPTR_CIFAR100 | {"partition.min_size": 500},
    "fedptr/fmnist_dir004_40clients": _FEDPTR_FMNIST | _DIR004 | {"partition.min_size": 25},
    "fedptr/cifar10_dir004_40clients": _DIR004 | {"partition.min_size": 25},
    "fedptr/cifar100_dir004_40clients": _FEDPTR_CIFAR100 | _DIR004 | {"partition.min_size": 500},
}
for cell in [cell for cell in CELLS if cell.endswith("_40clients")]:
    CELLS[cell] = CELLS[cell] | {"clients.count": 40, "clients.per_round": 10}

for data, full, partial in (("svhn", 50, 100), ("cifar10", 50, 100), ("cifar100", 100, 200)):
    of_data: Values = {"data.name": data}
    if data == "cifar100":
        of_data |= {"model.feature_dim": 512, "data.augment": "crop_flip_rotate"}
    for name, beta in (("iid", 10000), ("dir05", 0.5), ("dir01", 0.1)):
        CELLS[f"fedgela/{data}_{name}"] = of_data | {"rounds": full, "partition.beta": beta}
    for name, beta in (("iid", 10000), ("dir05", 0.5), ("dir02", 0.2)):
        CELLS[f"fedgela/{data}_50clients_{name}"] = of_data | {
            "rounds": partial,
            "partition.beta": beta,
            "partition.min_size": 100,
            "clients.count": 50,
        }
for data in ("cifar10", "svhn"):
    for clients in (10, 50):
        CELLS[f"fedgela/{data}_p{clients}c2"] = {
            "data.name": data,
            "rounds": 100,
            "clients.count": clients,
            "partition._target_": "fedexp.data.partitions.shards",
            "partition.classes_per_client": 2,
            "partition.holders": "random",
            "partition.balance": None,
            "partition.min_size": None,
        }

CELLS["fedgela/isic"] = {
    "data._target_": "fedexp.data.fed_isic.FedISIC",
    "data.name": None,
    "data.short_side": 224,
    "data.image_size": 200,
    "data.augment": "crop_flip_rotate",
    **_IMAGENET,
    "rounds": 100,
    "clients.count": 20,
    "partition._target_": "fedexp.data.partitions.natural",
    "partition.split_users": "even",
    "partition.test_split": "users",
    "partition.balance": None,
    "partition.min_size": None,
    "model._target_": "fedexp.models.zoo.torchvision_model",
    "model.name": "efficientnet_b0",
    "model.weights": "imagenet",
    "model.init": "default",
    "model.layers": None,
    "model.norm": None,
}
_LEAF: Values = {
    "data.name": None,
    "data.test_fraction": 0.1,
    "rounds": 20,
    "clients.count": 50,
    "partition._target_": "fedexp.data.partitions.natural",
    "partition.take": "random",
    "partition.test_split": "users",
    "partition.balance": None,
    "partition.min_size": None,
    "model.init": "default",
    "model.layers": None,
    "model.norm": None,
}
_SIMPLE_CNN: Values = {
    "model._target_": "fedexp.models.cnn.simple_cnn",
    "model.feature_dim": 84,
    "model.projection": None,
    "model.projection_dim": 84,
    "model.init": "default",
    "model.norm": None,
    "model.layers": None,
}
CELLS["fedgela/femnist"] = _LEAF | {"data._target_": "fedexp.data.leaf.Femnist"} | _SIMPLE_CNN
CELLS["fedgela/shakespeare"] = _LEAF | {
    "data._target_": "fedexp.data.leaf.Shakespeare",
    "model._target_": "fedexp.models.char_lstm.char_lstm",
    "model.embedding_dim": 8,
    "model.hidden": 256,
    "model.layers": 2,
    "model.feature_dim": 256,
    "model.projection": "mlp",
}

_HICS: dict[str, Values] = {
    "fmnist": {
        "data.name": "fashion_mnist",
        "data.mean": [0.5],
        "data.std": [0.5],
        "rounds": 200,
        "clients.count": 50,
        "clients.per_round": 5,
        "model._target_": "fedexp.models.cnn.hics_fmnist",
        "regularizer._target_": "fedexp.core.sockets.Regularizer",
        "sampler.temperature": 0.0025,
        "sampler.gamma_0": 4,
        "evaluation.targets": [0.75],
        "model.blocks": "relu",
        "model.dropout": 0,
        "optimizer._target_": "torch.optim.SGD",
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 5e-4,
    },
    "cifar10": {
        "data.name": "cifar10",
        "rounds": 500,
        "clients.count": 50,
        "clients.per_round": 10,
        "model._target_": "fedexp.models.cnn.hics_cifar",
        "model.feature_dim": 64,
        "regularizer._target_": "fedexp.regularizers.proximal.Proximal",
        "regularizer.mu": 0.1,
        "sampler.temperature": 0.0015,
        "sampler.gamma_0": 4,
        "evaluation.targets": [0.6],
        "optimizer._target_": "torch.optim.Adam",
    },
    "cifar100": {
        "data.name": "cifar100",
        "rounds": 1000,
        "clients.count": 100,
        "clients.per_round": 20,
        "model._target_": "fedexp.models.cnn.hics_cifar",
        "model.feature_dim": 64,
        "regularizer.mu": 0.1,
        "sampler.temperature": 0.0015,
        "sampler.gamma_0": 2,
        "evaluation.targets": [0.3],
        "optimizer._target_": "torch.optim.Adam",
    },
}
_ALPHAS = {
    "fmnist": {
        1: [0.001, 0.002, 0.005, 0.01, 0.5],
        2: [0.001, 0.002, 0.005, 0.01, 0.2],
        3: [0.001, 0.001, 0.001, 0.001, 0.001],
    },
    "cifar10": {
        1: [0.001, 0.01, 0.1, 0.5, 1.0],
        2: [0.001, 0.002, 0.005, 0.01, 0.5],
        3: [0.001, 0.002, 0.005, 0.01, 0.1],
    },
    "cifar100": {1: [0.001, 0.01, 0.1, 0.5, 1.0], 2: [0.001, 0.005, 0.01, 0.1, 1.0]},
}
for data, settings in _ALPHAS.items():
    for number, alphas in settings.items():
        CELLS[f"hics/{data}_setting{number}"] = _HICS[data] | {"partition.alphas": alphas}

# What each method adds under a paper's protocol.
_NO_BIAS: Values = {"head._target_": "fedexp.heads.linear.Linear", "head.bias": False}
_RELEASED_ETF: Values = {
    "head.feature_norm": "batchnorm_affine",
    "head.energy": 1e10,
    "head.missing": "zero_logit",
}
METHODS: dict[str, dict[str, Values]] = {
    "fednh": {
        "fednh": {
            "head._target_": "fedexp.heads.prototype.Prototype",
            "head.init": "orthogonal",
            "head.renormalize_clients": True,
            "head.augmented_means": True,
            "head.weighting": "count",
            "head.rho": 0.9,
            "head.scale": {"init": 1, "trainable": True},
        },
        "fednh_paper": {
            "head.init": "maximin",
            "head.renormalize_clients": False,
            "head.weighting": "uniform",
            "head.rho": 0.9,
            "head.scale": {"init": 1, "trainable": True},
        },
        "fedavg": _NO_BIAS,
        "local": _NO_BIAS | {"clients.per_round": 100, "rounds": 20},
        "fedper": _NO_BIAS | {"personalization.global_model": "initial_head"},
        "fedrep": _NO_BIAS
        | {"personalization.head_epochs": 10, "personalization.global_model": "initial_head"},
        "fedbabu": _NO_BIAS
        | {"personalization.tuning_epochs": 5, "personalization.tune_from": "local"},
        "fedrod": _NO_BIAS
        | {
            "loss._target_": "fedexp.losses.adjusted.BalancedSoftmax",
            "personalization.private_head": "hypernetwork",
            "personalization.second_phase": "plain_sgd",
            "personalization.clip_second_phase": False,
        },
        "creff": {
            "head._target_": "fedexp.heads.retrained.Retrained",
            "head.bias": False,
            "head.features": 100,
            "head.match_steps": 100,
            "head.match_lr": 0.01,
            "head.retrain_epochs": 300,
            "head.retrain_batch_size": 64,
            "head.retrain_lr": 0.01,
            "head.draws": 10,
            "head.draw_size": 64,
            "loss._target_": "fedexp.losses.cross_entropy.CrossEntropy",
        },
        "ditto": _NO_BIAS
        | {
            "personalization.lam": 0.75,
            "personalization.anchor": "local",
            "personalization.optimizer": "plain_sgd",
            "personalization.clip_pull": False,
        },
        "fedproto": _NO_BIAS
        | {
            "loss.lam": 0.1,
            "loss.weighting": "uniform",
            "loss.first": "random",
            "loss.features": "last_epoch",
            "personalization.score_with": "received",
        },
    },
    "fedsc": {
        "fedavg": {"loss._target_": "fedexp.losses.cross_entropy.CrossEntropy"},
        "fedprox": {"regularizer.mu": 0.01},
        "moon": {"loss.mu": 5, "loss.temperature": 0.5},
        "fedntd": {"loss.beta": 1, "loss.temperature": 1},
        "fedproto_global": {"loss.lam": 1},
        "fednh": {"head.scale": {"init": 20, "trainable": True}, "local.grad_clip": 10},
        "fedrcl": {
            "loss.temperature": 0.05,
            "loss.threshold": 0.7,
            "loss.beta": 1,
            "loss.negatives": 2,
            "loss.pairs": "hardest",
            "local.grad_clip": 10,
        },
        "fedcda": {
            "aggregator._target_": "fedexp.aggregators.cross_round.CrossRound",
            "aggregator.memory": 3,
            "aggregator.batches": 3,
            "aggregator.smoothness": 1,
            "aggregator.warmup": 0,
        },
        "fedsc": {
            "loss.normalizer": "dataset",
            "loss.distance": "mse",
            "loss.temperature": 0.05,
            "loss.neighbors": 2,
            "loss.metric": "angle",
            "loss.ce_weight": 1,
            "loss.rpcl_weight": 1,
            "loss.cpdr_weight": 1,
        },
    },
    "fedgela": {
        "fedavg": {"head._target_": "fedexp.heads.linear.Linear", "head.bias": True},
        "fedprox": {"regularizer.mu": 0.01},
        "moon": {"loss.temperature": 0.5},
        "fedrs": {"loss.alpha": 0.5},
        "fedlc": {"loss.tau": 1},
        "fedgen": {
            "head._target_": "fedexp.heads.linear.Linear",
            "loss.generated_weight": 10,
            "loss.distillation_weight": 10,
            "loss.decay": 0.98,
            "loss.noise_dim": 64,
            "loss.hidden": 512,
            "loss.steps": 50,
            "loss.batch_size": 100,
            "loss.lr": 3e-4,
            "loss.lr_decay": 0.98,
            "loss.weight_decay": 0.01,
            "loss.diversity": 1,
        },
        "fedrep": {"personalization.head_epochs": 10},
        "fedbabu": {"personalization.tuning_epochs": 10},
        "fedgela": _RELEASED_ETF | {"head.adapt": True, "head.phi": "linear"},
        "fedge": _RELEASED_ETF | {"head.adapt": False},
        "fedla": {
            "head._target_": "fedexp.heads.adapted_linear.AdaptedLinear",
            "head.phi": "linear",
            "head.missing": "zero_logit",
        },
    },
    "fedptr": {
        "fedavg": {"aggregator.weighting": "samples"},
        "fedprox": {"aggregator.weighting": "samples", "regularizer.mu": 2e-4},
        "fedprox_synthetic": {
            "aggregator.weighting": "samples",
            "regularizer._target_": "fedexp.regularizers.proximal_synthetic.ProximalSynthetic",
            "regularizer.mu": 2e-4,
            "regularizer.wait": 1,
            "regularizer.ipc": 10,
            "regularizer.init": "images",
            "regularizer.augment": "dsa",
        },
        "scaffold": {
            "aggregator.weighting": "uniform",
            "regularizer.weighting": "samples",
            "regularizer.correction_scaling": "samples",
        },
        "feddyn": {
            "regularizer.alpha": 0.01,
            "regularizer.alpha_scaling": "samples",
            "regularizer.clip_quadratic": False,
        },
        "feddc": {
            "regularizer.alpha": 0.1,
            "regularizer.alpha_scaling": "samples",
            "regularizer.correction_scaling": "samples",
            "regularizer.estimate": "corrected",
            "regularizer.drifts": "all",
        },
        "fedptr": {"regularizer.side": "client", "regularizer.init": "images"},
        "fedptr_s": {"regularizer.side": "server"},
    },
}
for method in ("fedptr", "fedptr_s"):
    METHODS["fedptr"][method] |= {
        "optimizer.momentum": 0.5,
        "aggregator.weighting": "samples",
        "regularizer.lag": 1,
        "regularizer.wait": 1,
        "regularizer.ipc": 10,
        "regularizer.outer_steps": 20,
        "regularizer.inner_steps": 10,
        "regularizer.step_size": 0.01,
        "regularizer.image_lr": 1000,
        "regularizer.step_lr": 1e-5,
        "regularizer.momentum": 0.5,
        "regularizer.project_steps": 5,
        "regularizer.project_lr": 0.01,
        "regularizer.lam": 0.05,
        "regularizer.adaptive": True,
        "regularizer.update_every": 1,
        "regularizer.augment": "dsa",
    }
_PROTOCOL_METHOD = {"fednh": "fedavg", "fedsc": "fedsc", "fedgela": "fedavg", "fedptr": "fedavg"}


def value(config: Config, key: str) -> Any:
    """The value at a dotted key; None where an option has no such key."""
    found: Any = config.model_dump(mode="json")
    for step in key.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def differences(config: Config, expected: Values) -> dict[str, tuple[Any, Any]]:
    """Key -> (found, expected), of those that differ."""
    found = {key: value(config, key) for key in expected}
    return {key: (found[key], want) for key, want in expected.items() if found[key] != want}


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_the_papers(cell: str) -> None:
    paper = cell.partition("/")[0]
    method = _PROTOCOL_METHOD.get(paper)
    config = compose(f"experiment={cell}", *([f"algorithm={method}"] if method else []))
    assert differences(config, PROTOCOLS[paper] | CELLS[cell]) == {}


@pytest.mark.parametrize(
    ("paper", "method"), [(paper, method) for paper in METHODS for method in METHODS[paper]]
)
def test_a_method_is_the_papers(paper: str, method: str) -> None:
    cell = {"fednh": "cifar10_dir03", "fedptr": "cifar10_dir001", "fedgela": "cifar10_dir01"}
    config = compose(
        f"experiment={paper}/{cell.get(paper, 'cifar10_dir02')}", f"algorithm={method}"
    )
    own = METHODS[paper][method]
    shared = {key: want for key, want in PROTOCOLS[paper].items() if key not in own}
    if "head._target_" not in own:  # a method may bring a head of its own
        shared = {key: want for key, want in shared.items() if not key.startswith("head.")}
    assert differences(config, shared | own) == {}


_BOTTLENECKS: Values = {"model.block": "bottleneck", "model.layers": [3, 4, 6, 3]}


@pytest.mark.parametrize(
    ("model", "expected"),
    [("simple_cnn", _SIMPLE_CNN), ("resnet18", {}), ("resnet50", _BOTTLENECKS)],
)
def test_a_model_of_fedgelas_table_10_is_the_papers(model: str, expected: Values) -> None:
    config = compose("experiment=fedgela/svhn_dir01", f"model={model}", "algorithm=fedavg")
    protocol = PROTOCOLS["fedgela"] | CELLS["fedgela/svhn_dir01"]
    assert differences(config, protocol | expected) == {}


# What a method adds on one of the sets, beside METHODS.
ON_DATA: dict[tuple[str, str], Values] = {
    ("fedptr/cifar100_dir001", "fedptr"): {"regularizer.ipc": 2},
    ("fedptr/cifar100_dir001", "fedptr_s"): {"regularizer.ipc": 2},
    ("fedptr/cifar100_dir001", "fedprox_synthetic"): {"regularizer.ipc": 2},
    ("fedptr/cifar100_dir004_40clients", "fedptr"): {"regularizer.ipc": 2},
    ("fedptr/fmnist_dir001", "fedptr"): {"regularizer.ipc": 10},
    ("fedsc/cifar100_dir02", "moon"): {"loss.mu": 1},
    ("fedsc/cifar100_lt", "moon"): {"loss.mu": 1},
    ("fedsc/tiny_lt", "moon"): {"loss.mu": 1},
    ("fedsc/fc100_nid2", "moon"): {"loss.mu": 1},
    ("fedptr/tiny_dir001", "fedptr"): {"regularizer.ipc": 2},
    ("fedptr/tiny_dir001", "fedptr_s"): {"regularizer.ipc": 2},
    ("fednh/tiny_dir03", "fednh"): {
        "model.norm_in_blocks": False,
        "head.scale": {"init": 20, "trainable": True},
    },
    ("fednh/tiny_dir03", "fednh_paper"): {
        "model.norm_in_blocks": True,
        "head.scale": {"init": 20, "trainable": True},
    },
    ("fednh/tiny_dir10", "fedrod"): {"personalization.private_head": "copy"},
}


@pytest.mark.parametrize(("cell", "method"), ON_DATA)
def test_a_method_is_the_papers_on_other_data(cell: str, method: str) -> None:
    own = ON_DATA[cell, method]
    shared = METHODS[cell.partition("/")[0]][method]
    config = compose(f"experiment={cell}", f"algorithm={method}")
    assert differences(config, shared | own) == {}


# Methods that are in none of the paper's tables get what its tables give all methods alike.
OTHERS: dict[tuple[str, str], Values] = {
    **{
        ("fednh/cifar10_dir03", each): _NO_BIAS
        for each in ("fedprox", "moon", "scaffold", "fedsc", "fedptr_s")
    },
    **{
        ("fedptr/cifar10_dir001", each): {"optimizer.momentum": 0}
        for each in ("fednh", "moon", "fedsc", "fedgela", "fedntd")
    },
    **{
        (cell, each): {"aggregator.weighting": "uniform"}
        for cell in ("fedgela/cifar10_50clients_dir02", "fedsc/cifar10_dir02")
        for each in ("scaffold", "feddyn", "feddc")
    },
}


@pytest.mark.parametrize(("cell", "method"), OTHERS)
def test_a_method_of_another_paper_is_compared_alike(cell: str, method: str) -> None:
    config = compose(f"experiment={cell}", f"algorithm={method}")
    assert differences(config, OTHERS[cell, method]) == {}


def test_a_head_that_is_chosen_or_set_wins_over_the_papers() -> None:
    cell = ["experiment=fednh/cifar10_dir03", "algorithm=fedavg"]
    assert value(compose(*cell, "head=cosine"), "head.bias") is None
    assert value(compose(*cell, "head.bias=true"), "head.bias") is True
