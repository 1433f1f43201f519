"""What ends the demo before its time."""


class DemoError(Exception):
    """The message says why, to whoever typed the command."""
