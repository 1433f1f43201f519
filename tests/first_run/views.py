"""What a server tells about the locks of a session, about sessions that wait, and about plans."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The queries of one engine."""

    locks: str
    """The locks of the session that asks: the index or table, the kind and the mode of a lock, and how many."""
    waits: str
    """The sessions that wait, each with what it waits for."""
    plan: str
    """The lines of the plan, last executed, of a statement like `:pattern`, and how often that was executed."""
    grant: str
    """What an account needs to read these."""
    optimized: str | None = None
    """Whether optimized locking is on; NULL if the server does not have it."""
    optimize: tuple[str, ...] = ()
    """Statements that switch it on."""
    restore: tuple[str, ...] = ()
    """Statements that switch it off."""
    prepared: str | None = None
    """Whether the first of these was on before; the last one of `restore`, which switches that off, is then left
    out."""

    def check(self, connection: Connection) -> None:
        """Ask each query once, so that a missing privilege is noticed first."""
        for query in (self.locks, self.waits):
            connection.execute(text(query)).all()
        connection.execute(text(self.plan), {"pattern": "no such statement"}).all()


SQL_SERVER = Views(
    locks="""\
SELECT coalesce(i.name, o.name, l.resource_type) AS place, l.resource_type, l.request_mode, count(*) AS number
FROM sys.dm_tran_locks AS l
LEFT JOIN sys.partitions AS p ON p.hobt_id = l.resource_associated_entity_id
LEFT JOIN sys.indexes AS i ON i.object_id = p.object_id AND i.index_id = p.index_id
LEFT JOIN sys.objects AS o ON l.resource_type = 'OBJECT' AND o.object_id = l.resource_associated_entity_id
WHERE l.request_session_id = @@SPID AND l.resource_database_id = DB_ID()
AND l.resource_type IN ('KEY', 'RID', 'PAGE', 'OBJECT', 'XACT')
GROUP BY coalesce(i.name, o.name, l.resource_type), l.resource_type, l.request_mode
ORDER BY 1, 2, 3""",
    waits="""\
SELECT w.session_id, w.wait_type, w.blocking_session_id, w.resource_description
FROM sys.dm_os_waiting_tasks AS w
WHERE w.blocking_session_id IS NOT NULL
ORDER BY w.session_id""",
    plan="""\
SELECT TOP 1 CAST(p.query_plan AS NVARCHAR(MAX)) AS line, q.execution_count
FROM sys.dm_exec_query_stats AS q
CROSS APPLY sys.dm_exec_sql_text(q.sql_handle) AS t
CROSS APPLY sys.dm_exec_query_plan(q.plan_handle) AS p
WHERE t.text LIKE :pattern AND t.text NOT LIKE '%dm_exec_query_stats%'
ORDER BY q.last_execution_time DESC""",
    grant="GRANT VIEW SERVER STATE TO this account (on Azure SQL Database: VIEW DATABASE STATE)",
    optimized="SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS INT)",
    optimize=(
        "ALTER DATABASE CURRENT SET ACCELERATED_DATABASE_RECOVERY = ON",
        "ALTER DATABASE CURRENT SET OPTIMIZED_LOCKING = ON",
    ),
    restore=(
        "ALTER DATABASE CURRENT SET OPTIMIZED_LOCKING = OFF",
        "ALTER DATABASE CURRENT SET ACCELERATED_DATABASE_RECOVERY = OFF",
    ),
    prepared="SELECT is_accelerated_database_recovery_on FROM sys.databases WHERE name = DB_NAME()",
)

ORACLE = Views(
    locks="""\
SELECT coalesce(o.object_name, 'transaction') AS place, l.type, l.lmode, count(*) AS amount
FROM v$lock l
LEFT JOIN all_objects o ON l.type = 'TM' AND o.object_id = l.id1
WHERE l.sid = SYS_CONTEXT('USERENV', 'SID') AND l.type IN ('TM', 'TX')
GROUP BY coalesce(o.object_name, 'transaction'), l.type, l.lmode
ORDER BY 1, 2, 3""",
    waits="""\
SELECT s.sid, s.event, s.blocking_session, s.sql_id
FROM v$session s
WHERE s.username = USER AND s.state = 'WAITING' AND s.wait_class <> 'Idle'
ORDER BY s.sid""",
    plan="""\
SELECT t.plan_table_output AS line, s.executions
FROM (SELECT sql_id, child_number, executions FROM v$sql
WHERE sql_text LIKE :pattern AND sql_text NOT LIKE '%plan_table_output%'
ORDER BY last_active_time DESC FETCH FIRST 1 ROWS ONLY) s,
TABLE(DBMS_XPLAN.DISPLAY_CURSOR(s.sql_id, s.child_number, 'BASIC')) t""",
    grant="GRANT SELECT_CATALOG_ROLE TO this account, and connect again",
)

VIEWS = {"mssql": SQL_SERVER, "oracle": ORACLE}
