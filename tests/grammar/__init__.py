"""The statements for engines without a server, checked by parsers of their languages."""


class ParserMissingError(RuntimeError):
    """An error for a parser that is not installed; the message contains the fix."""
