"""Second floor: models of others come in and go out, in files, folders and memory."""

from vit.exchange.files import SourceError
from vit.exchange.importing import import_weights
from vit.exchange.opening import open_model
from vit.exchange.read import Source, read

__all__ = ["Source", "SourceError", "import_weights", "open_model", "read"]
