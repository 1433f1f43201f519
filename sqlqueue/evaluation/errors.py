"""The error that ends a command early."""


class EvaluationError(Exception):
    """An error that ends the command; its message is for the user."""
