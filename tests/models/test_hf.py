"""``model=hf``: transformers of Hugging Face, made here from tiny configs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.federations import assert_engine_agrees, compose, federate
from support.refusals import refused
from test_backbones import factory
from torch import Tensor, nn

from fedexp.core.description import Description
from fedexp.errors import InputError
from fedexp.models.shape import feature_dim, for_inputs
from fedexp.runtime.plan import plan

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
VIT = TINY | {"patch_size": 2}
TEXT = Description("text", (7,), ("a", "b"), vocabulary=11)
VIT_OPTION = [
    "model=hf",
    "model.config={" + ",".join(f"{name}: {value}" for name, value in VIT.items()) + "}",
]


def bert(**overrides: Any) -> nn.Module:
    torch.manual_seed(0)
    options = {"name": "bert", "config": TINY} | overrides
    build = for_inputs(factory("hf", **options), TEXT)
    assert feature_dim(build, (7,)) == 16
    return build(input_shape=(7,)).eval()


def states(network: Any, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    outputs = network.network(input_ids=tokens, attention_mask=mask)
    found: Tensor = outputs.last_hidden_state
    return found


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 10, 10, 10]])


def test_a_network_that_needs_data_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    make = transformers.AutoModel.from_config

    def reads_values(settings: Any, **options: Any) -> Any:
        if torch.ones(1).is_meta:
            raise RuntimeError("Tensor.item() cannot be called on meta tensors")
        return make(settings, **options)

    monkeypatch.setattr(transformers.AutoModel, "from_config", reads_values)
    assert isinstance(bert(), nn.Module)


def test_features_of_each_token_are_not_pooled() -> None:
    build = for_inputs(factory("hf", name="bert", config=TINY), replace(TEXT, per_token=True))
    assert feature_dim(build, (7,), per_token=True) == 16
    network = build(input_shape=(7,)).eval()
    torch.testing.assert_close(network(TOKENS), states(network, TOKENS))


def test_tokens_are_pooled() -> None:
    network = bert()
    assert network.network.config.vocab_size == 11  # type: ignore[union-attr]
    expected = states(network, TOKENS).mean(dim=1)
    torch.testing.assert_close(network(TOKENS), expected)
    first, last = bert(pooling="first"), bert(pooling="last")
    torch.testing.assert_close(first(TOKENS), states(first, TOKENS)[:, 0])
    torch.testing.assert_close(last(TOKENS), states(last, TOKENS)[:, -1])
    pooled: Any = bert(pooling="pooler")
    torch.testing.assert_close(pooled(TOKENS), pooled.network(input_ids=TOKENS).pooler_output)
    assert not any("pooler" in name for name, _ in network.named_parameters())


@pytest.mark.parametrize("pooling", ["mean", "last", "first"])
def test_padding_changes_nothing(pooling: str) -> None:
    network = bert(pad_token=10, pooling=pooling)
    padded, short = network(TOKENS), network(TOKENS[1:, :4])
    torch.testing.assert_close(padded[1:], short)


def test_images_of_any_channels() -> None:
    build = factory("hf", config=VIT)
    for channels in (1, 3):
        network: Any = build(input_shape=(channels, 8, 8))
        assert network.network.config.num_channels == channels
        assert network(torch.rand(2, channels, 8, 8)).shape == (2, 16)
    assert feature_dim(factory("hf", config=VIT, feature_dim=5), (1, 8, 8)) == 5


def test_feature_maps_are_pooled() -> None:
    config = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1]}
    build = factory("hf", name="resnet", config=config)
    network: Any = build(input_shape=(1, 8, 8)).eval()
    images = torch.rand(2, 1, 8, 8)
    maps = network.network(pixel_values=images).last_hidden_state
    torch.testing.assert_close(network(images), maps.mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("vit", **VIT, image_size=8)
    network = transformers.AutoModelForImageClassification.from_config(config)
    network.save_pretrained(folder)
    return folder, network.vit.eval()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_gives_its_weights(saved: tuple[Path, nn.Module], channels: int) -> None:
    """Without its classifier; grey images are repeated."""
    folder, reference = saved
    build = factory("hf", name=str(folder), weights="pretrained", pooling="first")
    assert feature_dim(build, (channels, 8, 8)) == 16
    network = build(input_shape=(channels, 8, 8)).eval()
    images = torch.rand(2, channels, 8, 8)
    expected = reference(pixel_values=images.expand(-1, 3, -1, -1)).last_hidden_state[:, 0]
    torch.testing.assert_close(network(images), expected)
    torch.manual_seed(2)
    drawn: Any = factory("hf", name=str(folder))(input_shape=(3, 8, 8))
    name = "encoder.layer.0.attention.attention.query.weight"
    given = dict(reference.named_parameters())
    name = next(each for each in given if each.endswith("weight") and "layer" in each)
    assert not torch.equal(drawn.network.get_parameter(name), given[name])


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_federation_with_lora(saved: tuple[Path, nn.Module], engine: str) -> None:
    small = ["clients.count=3", "clients.per_round=2", "local.epochs=1", "data.subset=60"]
    federation = federate(
        *small,
        *["model=hf", f"model.name={saved[0]}", "model.weights=pretrained", f"engine={engine}"],
        *["model.lora.rank=2", "model.lora.targets=['*attention*']"],
    )
    names = federation.server.weights.keys()
    assert any(name.endswith("0.A") for name in names)
    assert all(name.endswith((".A", ".B")) or name.startswith("head.") for name in names)
    before = {name: value.clone() for name, value in federation.server.weights.items()}
    assert federation.run_round(1).metrics["train/loss"] > 0
    assert all((value != before[n]).any() for n, value in federation.server.weights.items())


@pytest.mark.slow
def test_engines_agree() -> None:
    options = ["clients.count=3", "clients.per_round=2", "local.epochs=1", "data.subset=60"]
    options += VIT_OPTION
    assert_engine_agrees("vectorized", options, rounds=1)


def test_a_padding_mask_cannot_be_stacked() -> None:
    network: Any = bert(pad_token=10)
    with pytest.raises(InputError, match="engine=vectorized: the padding mask"):
        network.prepare_for_vmap()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.name=vti"], r"^model\.name=vti: did you mean vit.*"),
        (
            ["model.config={image_sise: 8}"],
            r"^model\.config\.image_sise: .* did you mean image_size",
        ),
        (["model.name=bert"], r"^model\.name=bert: takes no images, .* try vit$"),
        (["model.pooling=max"], r"^model\.pooling=max: "),
        (["model.weights=imagenet"], r"^model\.weights=imagenet: "),
        ([], r"^model: hf_model does not fit inputs of 1x8x8 \(.*\(16 x 16\)"),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    with refused(message):
        plan(compose("model=hf", *overrides))


def test_a_network_for_images_takes_no_tokens() -> None:
    with pytest.raises(
        InputError, match=r"^model\.name=vit: takes no tokens, .* try bert or gpt2$"
    ):
        feature_dim(for_inputs(factory("hf", name="vit", config=VIT), TEXT), (7,))


def test_weights_that_do_not_fit(saved: tuple[Path, nn.Module]) -> None:
    build = factory("hf", name=str(saved[0]), weights="pretrained", config={"num_hidden_layers": 2})
    with pytest.raises(InputError, match=r"^model\.weights=pretrained: .*missing keys: .*1\."):
        build(input_shape=(3, 8, 8))


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        InputError,
        match=r"^model=hf: needs transformers, which is not installed; pip install 'fedexp\[hf\]'$",
    ):
        feature_dim(factory("hf"), (1, 8, 8))
