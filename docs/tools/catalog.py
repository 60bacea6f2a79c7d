"""The reference of SQL, from the catalog: functions, tables and views, in the words of their comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from pgqueue.cli.help import arguments_of

SQL = Path(__file__).parents[2] / "sql"

# Each page with its title, its first sentence, and the folders of sql/functions/ with its public functions.
_PAGES = {
    "functions-produce": ("SQL functions: enqueue", "For programs that enqueue jobs.", ["produce"]),
    "functions-consume": (
        "SQL functions: claim, hold, finish",
        "For a worker's jobs; for the order of calls see [the protocol](protocol.md).",
        ["claim", "hold", "finish"],
    ),
    "functions-workers": (
        "SQL functions: workers",
        "For a worker itself: register, go idle, deregister.",
        ["worker"],
    ),
    "functions-workflows": (
        "SQL functions: groups, steps, events",
        "See [Workflows](../how-to/workflows.md).",
        ["workflows"],
    ),
    "functions-schedules": (
        "SQL functions: schedules and limits",
        "See [Schedules](../how-to/schedules.md) and [Keys and limits](../how-to/keys.md).",
        ["schedules", "limits"],
    ),
    "functions-operate": ("SQL functions: operate", "For operators and monitors.", ["operate"]),
    "functions-maintain": (
        "SQL functions: maintenance, rights",
        "For maintenance, and for the owner of the schema.",
        ["maintain", "common"],
    ),
}

_FUNCTIONS = """
select m.name, m.arguments, m.returns, m.what_it_does, m.example, m.who_may
from pgqueue.manual m
order by m.name
"""

_RELATIONS = """
select
    c.relname, c.relkind::text, obj_description(c.oid, 'pg_class'),
    array(
        select jsonb_build_object(
            'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'comment', col_description(c.oid, a.attnum)
        )
        from pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        order by a.attnum
    )
from pg_class c
where c.relnamespace = 'pgqueue'::regnamespace
    and c.relkind in ('r', 'p', 'v')
    and not c.relispartition
    and c.relname <> 'alembic_version'
order by c.relname
"""

_TYPES = """
select t.typname, obj_description(t.oid, 'pg_type'), array(
    select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder
)
from pg_type t
where t.typnamespace = 'pgqueue'::regnamespace and t.typtype = 'e'
order by t.typname
"""


def functions(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the pages of functions by name. ValueError when a public function stands on none of them."""
    known = {row[0]: row for row in conn.execute(_FUNCTIONS).fetchall()}
    folders = {path.stem: path.parent.name for path in (SQL / "functions").glob("*/*.sql")}
    # Other functions that enqueue take the same options, and do not explain them again.
    _, shared = _explained(known["enqueue"][3], known["enqueue"][1])
    found: dict[str, str] = {}
    written: set[str] = set()
    for page, (title, purpose, named) in _PAGES.items():
        mine = [name for name in known if folders[name] in named]
        written |= set(mine)
        rows = ["| function | what it does |", "|---|---|"]
        rows += [f"| [`{name}`](#{name}) | {_cell(_first_sentence(known[name][3]))} |" for name in mine]
        found[page] = "\n".join(
            [
                f"# {title}\n\n{purpose} All stand in the schema `pgqueue`.\n",
                *rows,
                "",
                *(_function(*known[each], shared if "produce" in named else {}) for each in mine),
            ]
        )
    if missing := set(known) - written:
        raise ValueError(f"no page of docs/tools/catalog.py has the folder of {sorted(missing)}")
    return found


def _function(
    name: str, arguments: str, returns: str, what_it_does: str, example: str | None, who_may: list[str],
    shared: dict[str, str],
) -> str:  # fmt: skip
    purpose, explained = _explained(what_it_does, arguments)
    lines = [f"## {name}", "", _prose(purpose), ""]
    every = arguments_of(arguments)
    columns = ", ".join(each.removeprefix("IN").removeprefix("OUT ") for each in every if re.match("(IN)?OUT ", each))
    answers = f" ({columns})" if columns else ""
    parts = [_argument(each.removeprefix("INOUT ")) for each in every if not each.startswith("OUT ")]
    known = {**shared, **explained}
    if any(each in known for each, *_ in parts):
        lines += ["| argument | what it is | type | default |", "|---|---|---|---|"]
        lines += [f"| `{each}` | {_cell(known.get(each, ''))} | {kind} | {default} |" for each, kind, default in parts]
    elif parts:
        lines += ["| argument | type | default |", "|---|---|---|"]
        lines += [f"| `{each}` | {kind} | {default} |" for each, kind, default in parts]
    lines += [""] if parts else []
    lines += [f"Returns: {_cell(returns + answers)}", ""]
    if example:
        lines += ["```text", example, "```", ""]
    lines += [f"Who may call it: {', '.join([*who_may, 'the owner'])}.", ""]
    return "\n".join(lines)


def _explained(what_it_does: str, arguments: str) -> tuple[str, dict[str, str]]:
    """Return what a function does, and what its arguments are: the lines of its comment that begin with one's name."""
    lines = what_it_does.split("\n")
    # "Maintenance: ..." is what one does, and no argument.
    names = {re.sub("^(IN|OUT|INOUT) ", "", each).split(" ")[0] for each in arguments_of(arguments)}
    named = [found if (found := re.fullmatch(r"(\w+): (.*)", line)) and found[1] in names else None for line in lines]
    return (
        "\n".join(line for line, found in zip(lines, named, strict=True) if found is None),
        {found[1]: found[2] for found in named if found is not None},
    )


def _first_sentence(what_it_does: str) -> str:
    """Return the first sentence of a comment; of a long one, its first clause."""
    sentence = re.split(r"(?<=\.)\s", what_it_does, maxsplit=1)[0]
    clause = re.match(r"(?:[^()]|\([^)]*\)){30,}?(?=[:;] )", sentence)
    return sentence if len(sentence) < 120 or clause is None else f"{clause[0]}."


def _argument(text: str) -> tuple[str, str, str]:
    """Return the name of an argument, its type and its default, from its part of a signature."""
    signature, _, default = text.partition(" DEFAULT ")
    name, _, kind = signature.removeprefix("VARIADIC ").partition(" ")
    default = re.sub(r"::[a-z][\w. ]*(\[\])?$", "", default)
    return name, kind, default if default == "any" else f"`{default}`" if default else "required"


def tables(conn: psycopg.Connection[Any]) -> str:
    """Return the page of tables and views, with each column."""
    lines = [
        "# Tables, views and types",
        "",
        "Read the views and the tables of settings; [SQL](sql.md#views-and-tables) says which are public. The",
        "others are private: they may change in any release, and a program that reads them breaks.",
        "",
        "## Types",
        "",
    ]
    for name, comment, labels in conn.execute(_TYPES).fetchall():
        lines += [f"`{name}`: {_prose(comment)} Values: {', '.join(f'`{label}`' for label in labels)}.", ""]
    for name, kind, comment, columns in conn.execute(_RELATIONS).fetchall():
        lines += [f"## {name}", "", f"{'View' if kind == 'v' else 'Table'}. {_prose(comment)}", ""]
        lines += ["| column | type | what it holds |", "|---|---|---|"]
        for column in columns:
            if column["comment"] is None:
                raise ValueError(f"the column {name}.{column['name']} has no comment")
            lines.append(f"| `{column['name']}` | {_cell(column['type'])} | {_cell(column['comment'])} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|").replace("\n", " ")


def _prose(text: str) -> str:
    """Return a comment as Markdown: what could be read as markup stands as it is, save code in backticks."""
    parts = re.split(r"(`[^`]+`)", text.strip())
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts)
