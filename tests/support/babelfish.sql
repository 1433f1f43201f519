-- What the tests' server of Babelfish needs, run with psql in its PostgreSQL database, once, by the owner of that.
-- Its own version, 12.0, is that of SQL Server 2014, which sqlqueue refuses.
ALTER SYSTEM SET babelfishpg_tds.product_version = '16.0.4000.1';
-- Levels above READ COMMITTED are PostgreSQL's own.
ALTER ROLE CURRENT_USER SET babelfishpg_tsql.isolation_level_serializable = 'pg_isolation';
ALTER ROLE CURRENT_USER SET babelfishpg_tsql.isolation_level_repeatable_read = 'pg_isolation';
SELECT pg_reload_conf();
-- While IDENTITY_INSERT is on, INSERT .. OUTPUT has no result: keys may be given without it instead.
CREATE FUNCTION public.sqlqueue_by_default() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  UPDATE pg_catalog.pg_attribute a SET attidentity = 'd' FROM pg_catalog.pg_event_trigger_ddl_commands() d
   WHERE a.attrelid = d.objid AND a.attidentity = 'a';
END $$;
CREATE EVENT TRIGGER sqlqueue_by_default ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
  EXECUTE FUNCTION public.sqlqueue_by_default();
-- Views of its catalog that are missing or wrong, or that a new connection takes seconds to read
CREATE VIEW sys.sqlqueue_objects AS
SELECT oid::int AS object_id, relnamespace::int AS schema_id, CASE relkind WHEN 'r' THEN 'U' ELSE 'V' END AS type,
 coalesce((SELECT option_value FROM pg_options_to_table(reloptions) WHERE option_name = 'bbf_original_rel_name'),
  relname::text)::sys.nvarchar(128) COLLATE sys.database_default AS name
FROM pg_catalog.pg_class WHERE relkind IN ('r', 'v');
-- An index is called by its name, its table's and the MD5 of its name there; where that is too long for PostgreSQL, by
-- the beginning of it, and the MD5 of it.  Its condition is not reported.
CREATE VIEW sys.sqlqueue_indexes AS
SELECT x.indrelid::int AS object_id,
 1 + (SELECT count(*) FROM pg_catalog.pg_index o WHERE o.indrelid = x.indrelid AND o.indexrelid <= x.indexrelid)
  AS index_id,
 coalesce((SELECT left(i.relname::text, n) FROM generate_series(1, 63) AS g(n) WHERE
   i.relname = concat(left(i.relname::text, n), t.relname, md5(left(i.relname::text, n))) OR i.relname = concat(
    left(i.relname::text, 31), md5(concat(left(i.relname::text, n), t.relname, md5(left(i.relname::text, n)))))
  ), i.relname::text)::sys.nvarchar(128) COLLATE sys.database_default AS name,
 x.indisunique::int AS is_unique, x.indisprimary::int AS is_primary_key, 0 AS is_disabled,
 2 - x.indisprimary::int AS type, 1 AS allow_row_locks,
 regexp_replace(replace(pg_get_expr(x.indpred, x.indrelid), '::"varchar"', ''), '= ANY \(ARRAY\[(.*?)\]\)', 'IN (\1)',
  'g')::sys.nvarchar COLLATE sys.database_default AS filter_definition
FROM pg_catalog.pg_index x
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid JOIN pg_catalog.pg_class t ON t.oid = x.indrelid;
-- It keeps no settings of procedures and triggers, and its filtered indexes refuse no writes.
CREATE FUNCTION sys.dm_sql_referencing_entities(sys.nvarchar, sys.nvarchar)
RETURNS TABLE (referencing_id int, referencing_class_desc sys.nvarchar(60)) LANGUAGE sql AS
$$ SELECT 0, ''::sys.nvarchar(60) WHERE false $$;
-- It has other numbers of indexes than the rest of the catalog.
CREATE VIEW sys.sqlqueue_key_constraints AS
SELECT conname::sys.nvarchar(128) COLLATE sys.database_default AS name, oid::int AS object_id,
 connamespace::int AS schema_id, conrelid::int AS parent_object_id, CASE contype WHEN 'p' THEN 'PK' ELSE 'UQ' END AS type,
 1 + (SELECT count(*) FROM pg_catalog.pg_index o WHERE o.indrelid = conrelid AND o.indexrelid <= conindid)
  AS unique_index_id
FROM pg_catalog.pg_constraint WHERE contype IN ('p', 'u');
-- It has a row for each column of that name, in whatever table.
CREATE VIEW sys.sqlqueue_identity_columns AS
SELECT attrelid::int AS object_id, attnum::int AS column_id, 1 AS is_identity,
 sys.ident_seed(sys.object_name(attrelid::int))::bigint AS seed_value,
 sys.ident_incr(sys.object_name(attrelid::int))::bigint AS increment_value
FROM pg_catalog.pg_attribute WHERE attidentity IN ('a', 'd');
CREATE VIEW sys.sqlqueue_referential_constraints AS
SELECT s.name AS constraint_schema, f.name AS constraint_name, s.name AS unique_constraint_schema,
 k.conname::sys.nvarchar(128) COLLATE sys.database_default AS unique_constraint_name, 'SIMPLE' AS match_option,
 replace(f.update_referential_action_desc, '_', ' ') AS update_rule,
 replace(f.delete_referential_action_desc, '_', ' ') AS delete_rule
FROM sys.foreign_keys f JOIN sys.schemas s ON s.schema_id = f.schema_id
JOIN pg_catalog.pg_constraint k ON k.contype IN ('p', 'u') AND k.conindid = f.key_index_id::oid;
GRANT SELECT ON sys.sqlqueue_objects, sys.sqlqueue_indexes, sys.sqlqueue_key_constraints,
 sys.sqlqueue_identity_columns, sys.sqlqueue_referential_constraints TO PUBLIC;
