"""A model of locks: how a database treats rows, index entries and row versions while transactions interleave.

The library's own operations run on it, with the statements that they really send, through SQLAlchemy and an engine
whose server is the model.  The model reads the effect of a statement off its text: the index and the hints that it
names, its columns, its criteria, its limit, SKIP LOCKED or READPAST.  When a statement changes, so does the verdict.

- `locks`: modes of locks, and which of them conflict.
- `rows`: versions of rows.  SQLite evaluates criteria and assignments on the versions that it is given.
- `paths`: the index through which a statement reads its rows, whether it covers the statement, and when criteria are
  evaluated.
- `server`, and for each engine its rules and their sources: `postgresql`, `innodb`, `sqlserver`, `oracle`.
- `engine`: SQLAlchemy engines in front of the model.
- `interleaving`: transactions that take turns, at each lock or at each statement.
- `inserts`: conflicts of inserted rows by unique keys.
- `steps`, and the transactions in `scenarios`, `upkeep`, `kinds` and `keyed`.
- `guarantees`: no row goes to two claimers; no claim waits for a claim; no lock is kept on what a claim does not
  return; no free row is withheld; nothing is taken that has just been completed; nothing deadlocks; a change of a set
  waits only for rows of the set, and locks no others; the messages of one key go to one claimer at a time.
- `former_statements`, `wrong_statements`: earlier or incorrect statements, which the model has to refute.

`real_servers` runs the same scenarios on PostgreSQL, MySQL and MariaDB, with a thread for each transaction, and asks
the server which transactions wait.  Step by step they behave like the model, deadlocks included (`test_servers`).  SQL
Server and Oracle were never compared with their models: the rules are those of the manuals, and where these are silent,
both possibilities are tested.  SQL Server is modelled with READ_COMMITTED_SNAPSHOT on and off.  Where it is off, claims
wait for writers, and claims of limited queues deadlock; all other guarantees hold.

The model differs from servers as follows:

- The longest waiting transaction is served first only where turns are taken as on real servers; otherwise any order is
  tried.
- Gaps are not locked (READ COMMITTED throughout).
- A plan uses the index, or the keys, that the statement names; a planner that is free to choose on SQL Server reads the
  whole table.  The model has no read-ahead of nested loops, no lock escalation, no partitions, no pages, and none of
  Oracle's transaction slots in blocks.
- An index is read as of the beginning of a statement; entries that are inserted later are not seen.
- Semi-consistent reads of InnoDB, which only scans have, are left out: nothing here scans.
"""
