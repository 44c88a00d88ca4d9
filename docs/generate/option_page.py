"""The page of one option."""

from collections.abc import Iterable, Iterator

from generate.citation import chosen_by, citation
from generate.declared import Relation, conflicts, needs, warnings
from generate.measured_section import measured_section
from generate.options import GROUPS, Option, find
from generate.target import explanation, is_own, source_file
from generate.text import code, escape, prose, table


def option_page(option: Option) -> str:
    """The page as MyST Markdown."""
    parts = [
        f"# `{option.group}={option.name}`",
        escape(option.summary),
        *_facts(option),
        *_section("What it chooses", _choices(option)),
        *_section("How it works", prose(explanation(option))),
        *_section("Keys", _keys(option)),
        *_section("What it needs and forbids", _relations(option)),
        *_section("Measured on digits", measured_section(option)),
    ]
    return "\n\n".join(parts) + "\n"


def link(option: Option) -> str:
    """A link to the option's page, from any page."""
    return f"[`{option.group}={option.name}`](/{option.page}.md)"


def _section(title: str, content: str) -> list[str]:
    return [f"## {title}", content] if content else []


def _facts(option: Option) -> Iterator[str]:
    rows = [("Choose it", f"`fedexp {option.override}`")]
    if source := citation(option):
        rows.append(("Source", escape(source)))
    if option.bases:
        bases = ", ".join(link(find(option.group, base)) for base in option.bases)
        rows.append(("Starts from", bases))
    if methods := chosen_by(option):
        rows.append(("Part of", ", ".join(map(link, methods))))
    if is_own(option):
        rows.append(("Code", f"`{source_file(option)}`"))
    elif option.target and option.target != "???":
        rows.append(("Code", f"`{option.target}`"))
    yield ":::{div} facts\n" + table(("", ""), rows) + ":::"


def _choices(option: Option) -> str:
    found = []
    for group, name in option.choices:
        if group in GROUPS:
            found.append(f"* {link(find(group, name))}: {escape(find(group, name).summary)}")
    return "\n".join(found)


def _keys(option: Option) -> str:
    keys = [key for key in option.keys if key.default or key.meaning]
    if not keys:
        return ""
    rows = ((code(key.name), code(key.default), escape(key.meaning)) for key in keys)
    return ":::{div} keys\n" + table(("key", "default", "meaning"), rows) + ":::"


def _relations(option: Option) -> str:
    needed = [_relation("Needs", each) for each in needs(option)]
    refused = [_relation("Refuses what", each) for each in _joined(conflicts(option))]
    warned = [_relation("Warns of what", each) for each in warnings(option)]
    return "\n".join([*needed, *refused, *warned])


def _joined(relations: Iterable[Relation]) -> Iterator[Relation]:
    """Relations with the same property and message as one."""
    found: dict[tuple[str, str], dict[Option, None]] = {}
    for each in relations:
        found.setdefault((each.trait, each.message), {}).update(dict.fromkeys(each.others))
    for (trait, message), others in found.items():
        yield Relation(trait, message, tuple(others))


def _relation(verb: str, relation: Relation) -> str:
    """One item of a list."""
    line = f"* {verb} {escape(relation.trait)}"
    if relation.others:
        line += ": " + ", ".join(link(each) for each in relation.others)
    if relation.message:
        line += f". A run says: {code(relation.message.replace('{other}', 'OPTION'))}"
    return line
