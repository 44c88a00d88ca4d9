"""What ``--help`` lists."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf


def register_help_resolver() -> None:
    """Register the resolver that ``hydra.help.template`` uses."""
    OmegaConf.register_new_resolver("config_groups", config_groups, replace=True)


def config_groups(sources: Sequence[Mapping[str, str]], hidden: Collection[str]) -> str:
    """The config groups and their options, a group a line.

    Args:
        sources: ``hydra.runtime.config_sources``, of which the folders are searched.
        hidden: the folders of a config tree that a user does not choose from.
    """
    options: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        root = Path(source["path"])
        for path in root.glob("*/**/*.yaml") if source["schema"] == "file" else ():
            group = path.parent.relative_to(root)
            if group.parts[0] not in hidden:
                options[group.as_posix()].add(path.stem)
    return "\n".join(f"{group}: {', '.join(sorted(options[group]))}" for group in sorted(options))
