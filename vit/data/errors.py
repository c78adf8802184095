"""The error of data that a person has to correct, and names as its messages show them."""


class DataError(ValueError):
    """Something about a data set that a person has to put right; the text is one line and says how."""


def printable(name: str) -> str:
    """A file name on one line, whatever characters are in it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
