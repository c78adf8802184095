"""The warnings of Pillow, which are ignored while images are decoded, in any number of threads. Its log, with which it
precedes some errors, is printed only where the program has set up logging.
"""

import logging
import re
import threading
import warnings
from contextlib import suppress

MODULES = r"(PIL|pillow_heif|vit\.data\.decoding)\b"  # in which an image can lead to a warning
FILTER = ("ignore", None, Warning, re.compile(MODULES), 0)

logging.getLogger("PIL").addHandler(logging.NullHandler())  # instead of Python's, which prints to stderr


class QuietDecoding:
    """Context manager: warnings of `MODULES` are ignored while any thread is inside, and no others.

    `warnings.catch_warnings` is not safe in threads: of two that overlap, the second one restores the filters of the
    first one, which then ignore every warning of the process until it ends. It also makes Python repeat warnings that
    it has shown.
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
