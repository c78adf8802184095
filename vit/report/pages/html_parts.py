"""Parts of an HTML page from plain values. Every value is escaped here, so class and file names may be anything."""

from collections.abc import Collection, Iterable, Sequence
from html import escape

from vit.messages import is_visible

Value = str | int | float | None


def text(value: Value) -> str:
    """A value as HTML text or a quoted attribute; None is empty, control characters are escape sequences."""
    if value is None:
        return ""
    return escape("".join(c if is_visible(c) else ascii(c)[1:-1] for c in str(value)), quote=True)


def shortened(value: str, length: int = 300) -> str:
    """The start of a text, with an ellipsis where it is cut."""
    return value if len(value) <= length else f"{value[:length]}…"


def paragraph(value: str, muted: bool = False) -> str:
    """A paragraph; `muted` for remarks."""
    return f"<p{' class=muted' if muted else ''}>{text(value)}</p>\n"


def preformatted(value: str) -> str:
    """A command or other text in a fixed-width font, wrapped on narrow screens."""
    return f"<pre>{text(value)}</pre>\n"


def heading(value: str) -> str:
    """A heading within a section."""
    return f"<h3>{text(value)}</h3>\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[Value]], caption: str, numbers: Collection[int] = ()) -> str:
    """A table that scrolls sideways on narrow screens, also by keyboard. Its cells run from right to left if they begin
    with an Arabic or Hebrew letter.

    Args:
        caption: what the table shows.
        numbers: indices of the columns that are aligned to the right.
    """
    kinds = [" class=number" if i in numbers else "" for i in range(len(columns))]
    cells = [kind or " dir=auto" for kind in kinds]
    head = "".join(f"<th scope=col{kind}>{text(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text(value)}</td>" for value, kind in zip(row, cells, strict=True)) + "</tr>\n"
        for row in rows)
    return (f'<div class=scroll tabindex=0 role=region aria-label="{text(caption)}"><table><caption>{text(caption)}'
            f"</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n")


def cut_note(total: int, shown: int, noun: str) -> str:
    """A remark below a table that shows only its first rows; empty if it shows all."""
    return paragraph(f"The first {shown:,} of {total:,} {noun} are shown; the JSON file has all.", True) if \
        total > shown else ""


def facts(values: dict[str, Value]) -> str:
    """Names and values, one below the other; values that are None are left out."""
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>\n" for name, value in values.items()
                   if value is not None)
    return f"<dl>{rows}</dl>\n"


def drawing(url: str, alt: str) -> str:
    """A figure over the whole width, on a white background in dark mode too; `alt` describes it."""
    return (f'<div class=scroll tabindex=0 role=region aria-label="Figure"><img class=drawing src="{url}" '
            f'alt="{text(alt)}"></div>\n')


def card(url: str | None, alt: str, lines: Sequence[str]) -> str:
    """A small picture, if there is one, with lines of text below, the first one bold."""
    return _figure(_picture(url, alt), lines)


def pair_card(pictures: Iterable[tuple[str | None, str]], lines: Sequence[str]) -> str:
    """Small pictures, (url, alt) each, side by side with lines of text below, the first one bold."""
    return _figure(f"<div class=pair>{''.join(_picture(*each) for each in pictures)}</div>", lines)


def text_card(value: str, lines: Sequence[str]) -> str:
    """A text with lines below, the first one bold."""
    return _figure(f"<blockquote dir=auto>{text(value)}</blockquote>", lines)


def _picture(url: str | None, alt: str) -> str:
    return "" if url is None else f'<img src="{url}" alt="{text(alt)}">'


def _figure(shown: str, lines: Sequence[str]) -> str:
    first, *others = map(text, lines)
    below = "".join(f"<br>{line}" for line in others)
    return f"<figure>{shown}<figcaption><strong>{first}</strong>{below}</figcaption></figure>\n"


def cards(items: Iterable[str]) -> str:
    """Cards side by side, as many as the width allows."""
    return f"<div class=cards>{''.join(items)}</div>\n"
