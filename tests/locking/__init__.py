"""A model of locks: what a database does with rows, entries of indexes and row versions while transactions take turns.

The library's own operations run on it, with the statements that they really send, through SQLAlchemy and an engine
whose other end is the model.  What a statement does there is read off it: the index and the hints that it names, what
it selects, its criteria, its limit, SKIP LOCKED or READPAST.  A statement that changes changes the verdict.

- `locks`: modes, and which are in each other's way.
- `rows`: versions of rows.  SQLite evaluates criteria and assignments, of the versions that it is shown.
- `paths`: by which index a statement comes to its rows, whether that covers it, what it judges when.
- `server`, and with each engine's rules and their sources `postgresql`, `innodb`, `sqlserver`, `oracle`.
- `wire`: SQLAlchemy in front of it.  `play`: transactions that take turns, at each lock or at each statement.
- `inserts`: rows that meet others by a unique key.
- `steps`, and the transactions in `scenes`, `upkeep`, `kinds` and `keyed`.  `judging`: the promises: no row goes to
  two claimers; no claim waits for a claim; no lock is kept on what a claim does not return; nothing free is withheld;
  nothing is taken that has just been done; nothing deadlocks; what changes a set waits for none but the set's rows, and
  keeps no others; the messages of one key go to one claimer at a time.
- `formerly`, `careless`: statements as they once were, or as they must not be, which the model refutes.

`real` plays the same scenes on PostgreSQL, MySQL and MariaDB, a thread for each transaction, and asks the server who
waits.  Step by step they do what the model says, deadlocks included (`test_servers`).  SQL Server and Oracle have never
been asked: their rules are those of the manuals, and where these say nothing both ways are played.

Where the model and servers differ, it knows less:

- Who waits longest is served first only where turns are taken as on real servers; else any order is tried.
- Gaps are not locked (READ COMMITTED throughout).
- A plan goes by the index that is named, or by the keys that are; a planner that is free to choose on SQL Server reads
  all of the table.  That nested loops look ahead in an index, for many rows, is not in it, nor is lock escalation, nor
  are partitions, pages and the slots for transactions that a block of Oracle's has.
- An index is read as it was when a statement began; what comes into its way later is not met.
- Semi-consistent reads of InnoDB, which only scans have, are left out: nothing here scans.
"""
