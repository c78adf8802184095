"""The form in which a bundle stores a preprocessing."""

from dataclasses import asdict, fields, replace
from typing import Any, Self


class StoredPreprocessing:
    """Base class of the frozen dataclasses of preprocessing, which a bundle stores as plain values."""

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The preprocessing that `to_dict` saved.

        Raises:
            ValueError: a key is unknown or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"unknown preprocessing key {unknown[0]!r}; known: {', '.join(known)}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for the named fields."""
        return replace(self, **changes)
