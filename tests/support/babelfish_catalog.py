"""Views of Babelfish's catalog that are missing, wrong or take minutes, in the words of PostgreSQL's catalog."""

from __future__ import annotations

import re
from typing import NamedTuple


class View(NamedTuple):
    name: str
    definition: str


_OBJECTS = View(
    "bbf_objects",
    """
    SELECT CAST(oid AS int) AS object_id, CAST(relnamespace AS int) AS schema_id, CAST(coalesce((SELECT option_value
      FROM pg_options_to_table(reloptions) WHERE option_name = 'bbf_original_rel_name'), CAST(relname AS text)
     ) AS nvarchar(128)) COLLATE database_default AS name, CASE relkind WHEN 'r' THEN 'U' ELSE 'V' END AS type
    FROM pg_class WHERE relkind IN ('r', 'v')
    """,
)

# An index is called by its name, its table's and the MD5 of its name there; where that is too long for PostgreSQL, by
# the beginning of it, and the MD5 of it.  Its condition is not reported.
_INDEXES = View(
    "bbf_indexes",
    """
    SELECT CAST(x.indrelid AS int) AS object_id,
     1 + (SELECT count(*) FROM pg_index o WHERE o.indrelid = x.indrelid AND o.indexrelid <= x.indexrelid) AS index_id,
     CAST(coalesce((SELECT CAST(left(i.relname, n) AS text) FROM generate_series(1, 63) AS g(n) WHERE
        i.relname = concat(left(i.relname, n), t.relname, md5(left(i.relname, n))) OR i.relname = concat(
         left(i.relname, 31), md5(concat(left(i.relname, n), t.relname, md5(left(i.relname, n)))))
      ), CAST(i.relname AS text)) AS nvarchar(128)) COLLATE database_default AS name,
     CAST(x.indisunique AS int) AS is_unique, CAST(x.indisprimary AS int) AS is_primary_key,
     0 AS is_disabled, 2 - CAST(x.indisclustered AS int) AS type,
     replace(pg_get_expr(x.indpred, x.indrelid), '::"varchar"', '') COLLATE database_default AS filter_definition
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    """,
)

# It has other numbers of indexes than the rest of the catalog.
_KEYS = View(
    "bbf_keys",
    """
    SELECT CAST(conname AS nvarchar(128)) COLLATE database_default AS name,
     CAST(oid AS int) AS object_id, CAST(connamespace AS int) AS schema_id,
     CAST(conrelid AS int) AS parent_object_id, CASE contype WHEN 'p' THEN 'PK' ELSE 'UQ' END AS type,
     1 + (SELECT count(*) FROM pg_index o WHERE o.indrelid = conrelid AND o.indexrelid <= conindid) AS unique_index_id
    FROM pg_constraint WHERE contype IN ('p', 'u')
    """,
)

# It has a row for each column of that name, in whatever table.
_IDENTITIES = View(
    "bbf_identities",
    """
    SELECT CAST(attrelid AS int) AS object_id, CAST(attnum AS int) AS column_id, 1 AS is_identity,
     CAST(ident_seed(object_name(CAST(attrelid AS int))) AS bigint) AS seed_value,
     CAST(ident_incr(object_name(CAST(attrelid AS int))) AS bigint) AS increment_value
    FROM pg_attribute WHERE attidentity IN ('a', 'd')
    """,
)

_REFERENCES = View(
    "bbf_references",
    """
    SELECT s.name AS constraint_schema, f.name AS constraint_name, s.name AS unique_constraint_schema,
     k.conname AS unique_constraint_name, 'SIMPLE' AS match_option,
     replace(f.update_referential_action_desc, '_', ' ') AS update_rule,
     replace(f.delete_referential_action_desc, '_', ' ') AS delete_rule
    FROM sys.foreign_keys f JOIN sys.schemas s ON s.schema_id = f.schema_id
     JOIN pg_constraint k ON k.contype IN ('p', 'u') AND k.conindid = f.key_index_id
    """,
)

_INSTEAD = {
    "sys.objects": _OBJECTS,
    "sys.indexes": _INDEXES,
    "sys.key_constraints": _KEYS,
    "sys.identity_columns": _IDENTITIES,
    "information_schema.referential_constraints": _REFERENCES,
}
_NAME = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in _INSTEAD), re.IGNORECASE)


def with_own_views(statement: str) -> str:
    """``statement`` with common table expressions instead of those views."""
    plain = statement.replace("[sys].[", "sys.[").replace("[INFORMATION_SCHEMA].[", "INFORMATION_SCHEMA.[")
    plain = re.sub(r"\b(sys|INFORMATION_SCHEMA)\.\[(\w+)\]", r"\1.\2", plain)
    needed = {_INSTEAD[name.lower()] for name in _NAME.findall(plain)}
    if not needed:
        return statement
    views = ", ".join(f"{view.name} AS ({view.definition})" for view in sorted(needed))
    plain = _NAME.sub(lambda found: _INSTEAD[found[0].lower()].name, plain)
    return f"WITH {views}, {plain.removeprefix('WITH ')}" if plain.startswith("WITH ") else f"WITH {views} {plain}"
