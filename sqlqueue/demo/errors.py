"""The error that ends the demo early."""


class DemoError(Exception):
    """An error that ends the command; its message is for the user."""
