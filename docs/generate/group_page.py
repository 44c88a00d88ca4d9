"""The pages that list the options of a group, and the groups."""

from generate.options import CONF, GROUPS, Option, options
from generate.text import code, escape, sentence, table
from generate.yaml_comments import read


def group_page(group: str) -> str:
    """A list of a group's options, if it has any, and the keys that all of them share."""
    found = options(group)
    lines = [f"# `{_override(group)}`", f"{GROUPS[group]}."]
    if not found:
        return "\n\n".join([*lines, _shared_keys(group)]) + "\n"
    if group == "algorithm":
        lines.append("[All methods on one page](/options/gallery.md), in tables to be sorted.")
    rows = ((_link(each), escape(sentence(each.summary))) for each in found)
    lines.append(":::{div} options\n" + table(("option", ""), rows) + ":::")
    if shared := _shared_keys(group):
        lines += ["## Keys of every option", shared]
    names = "\n".join(f"{each.name} <{each.name}>" for each in found)
    lines.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return "\n\n".join(lines) + "\n"


def groups_page() -> str:
    """The list of all groups."""
    rows = [
        (f"[`{_override(group)}`]({group}/index.md)", about, str(len(options(group)) or ""))
        for group, about in GROUPS.items()
    ]
    names = "\n".join(f"{group} <{group}/index>" for group in [*GROUPS, "experiment"])
    return (
        "# All options\n\n"
        "An experiment is one option of each group, and values. Every option has a page: what it "
        "does, its keys, what it can be combined with, and a run on digits beside FedAvg's. "
        "These pages are made from the configs, the code and the stored runs.\n\n"
        + table(("group", "", "options"), rows)
        + f"\n```{{toctree}}\n:hidden:\n\ngallery\n{names}\n```\n"
    )


def _override(group: str) -> str:
    """The words on the command line that set the group: an option of it, or only its keys."""
    return f"{group}=" if options(group) else f"{group}.*"


def _link(option: Option) -> str:
    return f"[`{option.name}`]({option.name}.md)"


def _shared_keys(group: str) -> str:
    """The keys that ``config.yaml`` sets for every option of the group."""
    keys = [key for key in read(CONF / "config.yaml").keys if key.name.startswith(f"{group}.")]
    if not keys:
        return ""
    rows = ((code(key.name), code(key.default), escape(key.meaning)) for key in keys)
    return ":::{div} keys\n" + table(("key", "default", "meaning"), rows) + ":::"
