"""Tolerance for the sizes of splits by fractions, which a hash of each sample determines."""

from collections.abc import Mapping


def near(found: Mapping[str, object], expected: dict[str, int]) -> bool:
    """Whether the splits have the expected total, and val and test half to twice their expected size."""
    sizes = {key: value if isinstance(value, int) else len(value) for key, value in found.items()}
    held = all(expected[key] / 2 <= sizes[key] <= 2 * expected[key] for key in ("val", "test") if key in expected)
    return sizes.keys() == expected.keys() and sum(sizes.values()) == sum(expected.values()) and held
