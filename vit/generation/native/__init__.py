"""A compiled decoding step: `decoder.cpp`, its structs, cache and compilation, and the model that calls it."""

from vit.generation.native.compiled import Compiled
from vit.generation.native.library import BuildError
from vit.generation.native.support import Unsupported

__all__ = ["BuildError", "Compiled", "Unsupported"]
