"""The statements for engines that no test machine has, judged by a parser of their language."""


class ParserMissingError(RuntimeError):
    """A parser is not installed; the message says what to install."""
