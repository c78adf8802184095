"""Texts of pairs that look the same but differ, by white space around them or by their Unicode form, and markup."""

import logging
import re
import unicodedata
from collections.abc import Sequence

from vit.data.identity import to_nfc
from vit.messages import agree, number_of, quoted

log = logging.getLogger("vit")

# lines of the corpora of WMT and IWSLT that are no sentences, or contain one
MARKUP = re.compile(r"\s*<(\?xml|/?(doc|seg|url|talkid|keywords|speaker|reviewer|translator|(ref|src|tst)set))\b")


def strip_texts(column: str, texts: list[str], names: Sequence[str]) -> list[str]:
    """The texts without leading and trailing white space, which is invisible in a table and which a model would have to
    generate. The number of changed texts is logged.
    """
    stripped = [text.strip() for text in texts]
    # an empty text is reported by on_empty
    changed = [i for i, (old, new) in enumerate(zip(texts, stripped, strict=True)) if new and len(old) != len(new)]
    if changed:
        log.info("%s: white space around %d of %s is removed, such as %s in %s; data.strip=false leaves it",
                 column, len(changed), number_of(len(texts), "text"), quoted(texts[changed[0]]), names[changed[0]])
    return stripped


def warn_about_mixed_forms(column: str, texts: Sequence[str], names: Sequence[str]) -> None:
    """Warns if some texts encode a character as several code points, such as e and a combining accent, and other texts
    encode it as one code point (Unicode's NFC form).
    """
    other = [i for i, text in enumerate(texts) if not (text.isascii() or unicodedata.is_normalized("NFC", text))]
    if not other:
        return
    composed = set().union(*(set(to_nfc(texts[i])) - set(texts[i]) for i in other))
    twice = sorted(composed & set().union(*texts))
    if twice:
        example = next(i for i in other if twice[0] in to_nfc(texts[i]) and twice[0] not in texts[i])
        log.warning("%s: %d of %s %s not in Unicode's NFC form, such as %s in %s, while others have %s as one "
                    "character; both forms look the same, but are different for a model: convert the texts with "
                    "unicodedata.normalize('NFC', text)", column, len(other),
                    number_of(len(texts), "text"), agree(len(other), "is", "are"),
                    quoted(texts[example], format=ascii), names[example], ", ".join(map(ascii, twice[:3])))


def warn_about_markup(side: str, texts: Sequence[str], names: Sequence[str]) -> None:
    """Warns if lines of a file begin with a tag of SGML or XML, which is read as a text."""
    found = [i for i, text in enumerate(texts) if "<" in text and MARKUP.match(text)]
    if found:
        log.warning("%s: %d of %s %s with a tag such as %s in %s, which is read as text; if the file is SGML or XML, "
                    "convert it into one sentence per line on both sides", side, len(found),
                    number_of(len(texts), "line"), agree(len(found), "begins", "begin"), quoted(texts[found[0]]),
                    names[found[0]])
