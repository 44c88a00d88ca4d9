"""Keys of a preset give way to an option on the command line."""

from omegaconf import OmegaConf

from fedexp.config.composed import to_dict


def test_a_presets_key_gives_way_whatever_other_keys_are_typed() -> None:
    """The preset sets data.seed of data=synthetic; data=digits has none."""
    data = {"_target_": "fedexp.data.digits.Digits", "seed": 5}
    config = OmegaConf.create({"seed": 3, "data": data})
    kept = {"_target_": data["_target_"]}
    assert to_dict(config, ["data=digits", "seed=3"])["data"] == kept
    typed = to_dict(config, ["data=digits", "data.seed=5"])["data"]
    assert typed == data  # a later check refuses it
