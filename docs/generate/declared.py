"""What the options declare about each other: properties, needs and conflicts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.cli.compose import compose
from fedexp.config.build import build, locate
from fedexp.config.compatibility.declaration import Declaration, declared
from fedexp.core.part import Part
from fedexp.core.sockets import Head
from fedexp.runtime.early import WITHOUT_SHAPES
from fedexp.runtime.plan import traits_of_hooks
from generate.options import CONF, Option, find, options
from generate.target import is_own

SOCKETS: Mapping[str, type[Part]] = {"head": Head, **WITHOUT_SHAPES}

_SHAPE = {"feature_dim": 10, "num_classes": 10}


@dataclass(frozen=True)
class Relation:
    """What one option demands or forbids in another.

    Attributes:
        trait: the property of the other.
        message: what a run says if the demand is not met.
        others: the options that have the property, as far as options declare it.
    """

    trait: str
    message: str
    others: tuple[Option, ...]


def needs(option: Option) -> list[Relation]:
    """The properties that the data or other options must have."""
    if option.group == "measure":
        measure: Any = locate(option.group, option.target)
        return [Relation(str(trait), "", ()) for trait in sorted(measure.needs)]
    found = [Relation(t, text, _having(t)) for t, text in _declaration(option).needs.items()]
    if option.group in SOCKETS and not _part(option).takes_tokens:
        found.append(Relation("data with one class for each sample", "", ()))
    return found


def conflicts(option: Option) -> list[Relation]:
    """The combinations that are refused, whichever of the two options declares it."""
    own = _declaration(option)
    found = [Relation(trait, text, _having(trait)) for trait, text in own.forbids.items()]
    for other in _declaring():
        shared = own.traits & set(_declaration(other).forbids)
        if other.group != option.group:
            found += [
                Relation(trait, _declaration(other).forbids[trait], (other,))
                for trait in sorted(shared)
            ]
    return found


def warnings(option: Option) -> list[Relation]:
    """The combinations that are possible but probably a mistake."""
    found = _declaration(option).discourages
    return [Relation(trait, text, _having(trait)) for trait, text in found.items()]


@cache
def _declaration(option: Option) -> Declaration:
    if option.group in SOCKETS:
        part = _part(option)
        found = declared(option.group, part)
        return replace(found, traits=found.traits | traits_of_hooks(part))
    is_class = is_own(option) and isinstance(locate(option.group, option.target), type)
    if is_class and option.group != "measure":
        kind: Any = locate(option.group, option.target)
        values = {name: getattr(kind, name, {}) for name in ("forbids", "needs")}
        if all(isinstance(value, Mapping) for value in values.values()):
            return declared(option.group, kind)
    return Declaration(option.group)


@cache
def _part(option: Option) -> Part:
    """The part with its default values."""
    node = _node(option)
    if option.group == "head":
        return build("head", node, Head, supplied=tuple(_SHAPE))(**_SHAPE)
    return build(option.group, node, SOCKETS[option.group])


def _node(option: Option) -> dict[str, Any]:
    """Its ``_target_`` and keys; values of other groups are the default experiment's."""
    merged = OmegaConf.merge(*_files(option))
    merged.pop("defaults", None)
    whole = OmegaConf.merge(_default(), {"option": merged})
    found: Any = OmegaConf.to_container(whole.option, resolve=True)
    return dict(found)


def _files(option: Option) -> Iterator[DictConfig]:
    """The nodes of the options that it starts from or holds under a key, then its own."""
    for base in option.bases:
        yield from _files(find(option.group, base))
    file = OmegaConf.load(CONF / option.group / f"{option.name}.yaml")
    assert isinstance(file, DictConfig)
    for entry in file.get("defaults", []):
        place, name = next(iter(entry.items())) if isinstance(entry, DictConfig) else ("", "")
        group, _, key = place.removeprefix("/").partition("@")
        if key and not key.startswith("_"):
            yield from (OmegaConf.create({key: node}) for node in _files(find(group, name)))
    yield file.get(option.group, file)  # a file for the whole config names its group


@cache
def _default() -> Any:
    config = OmegaConf.to_container(compose([]), resolve=False)
    assert isinstance(config, dict)
    return OmegaConf.create({key: node for key, node in config.items() if key != "hydra"})


def _having(trait: str) -> tuple[Option, ...]:
    return tuple(each for each in _declaring() if trait in _declaration(each).traits)


def _declaring() -> Iterator[Option]:
    """The options whose declarations are known without data."""
    for group in (*SOCKETS, "engine"):
        yield from options(group)
