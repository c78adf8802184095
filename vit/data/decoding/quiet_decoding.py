"""Ignores the warnings of Pillow while images are decoded, in any number of threads.

Pillow also logs some errors before it raises them. These log records are printed only if the program sets up logging.
"""

import logging
import re
import threading
import warnings
from contextlib import suppress

MODULES = r"(PIL|pillow_heif|vit\.data\.decoding)\b"  # modules that may warn about an image
FILTER = ("ignore", None, Warning, re.compile(MODULES), 0)

logging.getLogger("PIL").addHandler(logging.NullHandler())  # replaces Python's default handler, which prints to stderr


class QuietDecoding:
    """Context manager: while any thread is inside, warnings of `MODULES` and no others are ignored.

    `warnings.catch_warnings` is not safe with threads: if two of them overlap, the one that ends last restores the
    filters that the other one had set, and these ignore every warning until the process ends. It also makes Python
    repeat warnings that were already shown.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                warnings.filters.insert(0, FILTER)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                with suppress(ValueError):  # a `catch_warnings` that ended in between has restored the filters
                    warnings.filters.remove(FILTER)


quiet_decoding = QuietDecoding()
