"""Second floor: models of others come in and go out, in files, folders and memory."""

from vit.exchange.files import SourceError
from vit.exchange.importing import import_weights
from vit.exchange.read import Source, read

__all__ = ["Source", "SourceError", "import_weights", "read"]
