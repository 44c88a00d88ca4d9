"""The lists in ``--help``: resolvers that ``hydra.help.template`` uses."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from fedexp.cli.installed import OWN
from fedexp.cli.option_folders import option_folders
from fedexp.reporting.papers.sweep import table_presets


def config_groups(sources: Sequence[Mapping[str, str]], hidden: Collection[str]) -> str:
    """The config groups and their options, one group per line, without the papers' tables.

    The options of an installed package are followed by its name and version.

    Args:
        sources: ``hydra.runtime.config_sources``; the folders among them are searched.
        hidden: folders of the config tree that are not for users.
    """
    options: dict[str, set[str]] = defaultdict(set)
    listed = {f"experiment/{name}" for name, _ in table_presets(option_folders(sources))}
    for root, package in option_folders(sources).items():
        origin = "" if package in OWN else f" [{package}]"
        for path in root.glob("*/**/*.yaml"):
            group = path.parent.relative_to(root)
            name = f"{group.as_posix()}/{path.stem}"
            if group.parts[0] not in hidden and name not in listed:
                listed.add(name)  # if two options have one name, Hydra takes the first
                options[group.as_posix()].add(path.stem + origin)
    return "\n".join(f"{group}: {', '.join(sorted(options[group]))}" for group in sorted(options))


def paper_tables(sources: Sequence[Mapping[str, str]]) -> str:
    """The text of ``--help`` that lists the experiments of papers.

    One line for each table gives its title. Then one line for each paper names the paper's figures.
    """
    found = dict(table_presets(option_folders(sources)))
    figures: dict[str, list[str]] = defaultdict(list)
    lines: dict[str, str] = {}
    for name, title in found.items():
        paper, _, own = name.rpartition("/")
        if own.startswith("figure"):
            figures[paper].append(own)
        else:
            lines[name] = title
    lines |= {f"{paper}/": ", ".join(names) for paper, names in figures.items()}
    width = max(map(len, lines), default=0)
    return "\n".join(f"  {name:<{width}}  {lines[name]}" for name in lines)
