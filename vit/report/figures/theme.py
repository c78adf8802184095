"""Colours of figures that exist in light and dark, for slides and pages of either kind."""

from dataclasses import dataclass

from matplotlib.colors import LinearSegmentedColormap

from vit.report.figures.style import BLUE, DARK_ORANGE, INK, MUTED, RULE


@dataclass(frozen=True)
class Theme:
    """Colours of a figure.

    Args:
        paper: the background.
        ink, muted, rule: text, secondary text, and frames.
        blue, orange: the two colours of data.
        weights: colours from 0, the background, to the maximum of a map.
    """

    paper: str
    ink: str
    muted: str
    rule: str
    blue: str
    orange: str
    weights: LinearSegmentedColormap


LIGHT = Theme("white", INK, MUTED, RULE, BLUE, DARK_ORANGE,
              LinearSegmentedColormap.from_list("weight", ["white", BLUE, "#12304f"]))
DARK = Theme("#171c22", "#e8edf2", "#9aa7b4", "#3a4550", "#6aa5e6", "#ef8a5a",
             LinearSegmentedColormap.from_list("dark weight", ["#171c22", BLUE, "#d6e8fb"]))


def theme(dark: bool) -> Theme:
    """The dark or the light theme."""
    return DARK if dark else LIGHT
