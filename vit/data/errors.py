"""The errors for data that a user has to correct, and the display of file names in messages."""

from vit.messages import ArgumentError


class DataError(ValueError):
    """Faulty data that a user has to correct; the message is one line that contains the fix."""


class SplitError(DataError, ArgumentError):
    """A split that the data does not have."""


def printable(name: str) -> str:
    """A file name as one line of printable characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
