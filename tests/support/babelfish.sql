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
