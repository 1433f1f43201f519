"""A worker as a whole: its start, its end, its maintenance, and the processes of a supervisor."""
