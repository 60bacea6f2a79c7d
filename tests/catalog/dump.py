"""The schema of the queue as text, the same on every supported version of PostgreSQL."""

from __future__ import annotations

import psycopg

_FUNCTIONS = """
select format(
    'function %s(%s)%s  returns %s%s  %s',
    p.proname,
    case
        when p.pronargs = 0 then ''
        else E'\\n    ' || replace(pg_get_function_arguments(p.oid), ', ', E',\\n    ')
    end,
    E'\\n',
    pg_get_function_result(p.oid),
    E'\\n',
    concat_ws(
        ', ', l.lanname,
        case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
        case p.proparallel when 's' then 'parallel safe' when 'r' then 'parallel restricted' else 'parallel unsafe' end,
        case when p.prosecdef then 'security definer' end,
        array_to_string(p.proconfig, ', ')
    )
)
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'pgqueue'::regnamespace
order by p.proname collate "C", p.oid
"""

_TABLES = """
select
    format(
        '%s %s', case c.relkind when 'v' then 'view' else 'table' end, c.relname
    )
    || coalesce(E'\\n    ' || pg_get_partkeydef(c.oid), '')
    || coalesce(E'\\n    with ' || array_to_string(c.reloptions, ', '), '')
    || coalesce((
        select string_agg(
            E'\\n    ' || concat_ws(
                ' ', a.attname, format_type(a.atttypid, a.atttypmod),
                case when a.attcollation = 'pg_catalog."C"'::regcollation then 'collate "C"' end,
                case when a.attnotnull then 'not null' end,
                case a.attidentity when 'a' then 'generated always as identity' end,
                'default ' || pg_get_expr(d.adbin, d.adrelid)
            ),
            '' order by a.attnum
        )
        from pg_attribute a
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    ), '')
    || coalesce((
        select string_agg(
            E'\\n    ' || pg_get_constraintdef(k.oid), '' order by pg_get_constraintdef(k.oid) collate "C"
        )
        from pg_constraint k
        where k.conrelid = c.oid and k.contype in ('c', 'p', 'u', 'f')
    ), '')
    || coalesce((
        select string_agg(
            E'\\n    ' || pg_get_indexdef(i.indexrelid), '' order by i.indexrelid::regclass::text collate "C"
        )
        from pg_index i
        where i.indrelid = c.oid
    ), '')
from pg_class c
where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v')
    and c.relname !~ '^history_[dm]_[0-9]+$'
order by c.relname collate "C"
"""

_TYPES = """
select 'type ' || t.typname || E'\\n    ' || string_agg(e.enumlabel, ', ' order by e.enumsortorder)
from pg_type t join pg_enum e on e.enumtypid = t.oid
where t.typnamespace = 'pgqueue'::regnamespace
group by t.typname
order by t.typname collate "C"
"""


def dump(conn: psycopg.Connection) -> str:
    """Types, tables with columns, constraints and indexes, views, functions with signatures and settings."""
    conn.execute("set search_path = pg_catalog")
    parts = [row[0] for query in (_TYPES, _TABLES, _FUNCTIONS) for row in conn.execute(query.encode())]
    conn.execute("reset search_path")
    return "\n\n".join(parts) + "\n"
