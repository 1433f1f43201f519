"""A model of locks: how a database handles rows, index entries and row versions while transactions interleave. The
library's own operations run on it, with the statements that they actually send, through SQLAlchemy and an engine whose
server is the model.  The model derives the effect of a statement from its text: the index and the hints that it names,
its columns, its criteria, its limit, SKIP LOCKED or READPAST. So a changed statement can change the result.

- `rows`: versions of rows.  SQLite evaluates criteria and assignments on the versions that it is given.
- `paths`: the index through which a statement reads its rows, whether it covers the statement, and when criteria are
  evaluated.
- `server`: locks, transactions, statements and inserts, and for each engine its rules and their sources: `postgresql`,
  `innodb`, `sqlserver`, `oracle`, with databases in which locks are on more than rows, or are released earlier.
- `models`: the models of engines and their variants, and the guarantees that each is known to violate.
- `engine`: SQLAlchemy engines in front of the model.
- `interleaving`: transactions that alternate, at each lock or at each statement.
- `scenarios`: the transactions.
- `guarantees`: no row goes to two claimers; no claim waits for a claim; no lock is kept on what a claim does not
  return; no free row is withheld; nothing is taken that has just been completed; nothing deadlocks; a change to a set
  of rows waits only for rows of the set, and locks no others; the messages of one key go to one claimer at a time; a
  heartbeat extends every lease whose row its own handler has not locked.
- `wrong_statements`: earlier or incorrect statements, in which the model must find violations.

`real_servers` runs the same scenarios on PostgreSQL, MySQL and MariaDB, with a thread for each transaction, and queries
the server for waiting transactions. Step by step they behave like the model, deadlocks included (`test_servers`).  SQL
Server and Oracle were never compared with their models: the rules come from the manuals.  The model of SQL Server keeps
every lock and reads every row that the manuals allow.  Variants are what they allow instead, settings of the database,
and optimized locking, which Azure SQL Database has.  Where claims may wait, as without READ_COMMITTED_SNAPSHOT or row
locks, all guarantees that keep a task from running twice are checked.

The model differs from servers as follows:

- The transaction that has waited longest continues first only in interleavings that are compared with real servers;
  otherwise any order is tried.
- Gaps are not locked (READ COMMITTED throughout).
- A plan uses the index, or the keys, that the statement names.  With FORCESEEK alone, any index that has the rows is
  tried; with neither, it reads the whole table.  Nested loops do not read ahead, and there are no partitions.
- An index, or in one variant a table, is one page or block, and escalation begins with a few locks.
- Oracle's locks on tables are left out: deleting a task locks a table that refers to it without an index.
- An index is read as of the beginning of a statement; entries that are inserted later are not seen.
- Semi-consistent reads of InnoDB, which only scans have, are left out: nothing here scans.
"""
