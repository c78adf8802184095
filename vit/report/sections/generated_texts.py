"""The sections about generated texts: metrics with intervals, length buckets, characters and the worst texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap

import numpy as np

from vit.evaluation import bleu_signature, text_metrics
from vit.evaluation.intervals.bootstrap import FEWEST, LEVEL
from vit.evaluation.intervals.text_bootstrap import RESAMPLES, TextStatistics
from vit.evaluation.text_metrics import character_errors, has_words
from vit.messages import left_to_right, number_of
from vit.nn import Attention
from vit.report.attention.figures import MIN_SPACING
from vit.report.attention.image_figures import image_to_text_picture
from vit.report.attention.maps import TokenMaps
from vit.report.attention.recording import Seq2SeqAttention, seq2seq_attention
from vit.report.figures.style import (
    FONT,
    INK,
    RULE,
    TITLE,
    cut_middle,
    drawable,
    literal,
    new_figure,
    save_figure,
    set_title,
    shorten,
    text_width,
)
from vit.report.figures.theme import LIGHT
from vit.report.pages.embedded import figure_url, thumbnail_url
from vit.report.pages.html_parts import card, cards, cut_note, drawing, facts, paragraph, shortened, table
from vit.report.sections.subject import Section, Subject, missing
from vit.report.seq2seq import marked_differences

BUCKETS = 5
LISTED = 30  # worst texts, and pairs of characters
BOOTSTRAPPED = 5000  # most pairs of the intervals; of more pairs, so many evenly spaced ones are used
WIDE = 480  # pixels of the picture of a text line
NAMES = {"exact_match": "exact match", "cer": "character error rate", "wer": "word error rate", "bleu": "BLEU",
         "chrf": "chrF"}
MISSING, ADDED = "(missing)", "(none)"  # for a character that was not generated, and for one that the reference lacks


def texts(subject: Subject) -> Section:
    """The metrics of the generated texts, with confidence intervals."""
    evaluation = subject.evaluation
    generated = [each.text for each in evaluation.predictions]
    count = len(generated)
    chosen = np.linspace(0, count - 1, min(count, BOOTSTRAPPED)).astype(int)
    references = [evaluation.all_references[i] for i in chosen]
    intervals = TextStatistics([generated[i] for i in chosen], references).intervals()
    rows = []
    for name, shown in NAMES.items():
        interval = intervals.get(name)
        rows.append((shown, f"{evaluation.metrics[name]:.2%}",
                     "" if interval is None else f"{interval.low:.2%} to {interval.high:.2%}"))
    html = table(("measure", "value", f"{LEVEL:.0%} interval"), rows, "Generated texts", (1, 2))
    html += facts({"loss of the references": f"{evaluation.metrics['loss']:.4f}",
                   "perplexity": f"{evaluation.metrics['perplexity']:.6g}",
                   "token accuracy": f"{evaluation.metrics['token_accuracy']:.2%}",
                   "BLEU signature": bleu_signature(evaluation.all_references)})
    html += paragraph(f"Bootstrap: percentiles over {RESAMPLES:,} draws of {number_of(len(chosen), 'pair')} with "
                      f"replacement. An exact match with fewer than {FEWEST} right or wrong pairs has the exact "
                      "binomial interval of Clopper and Pearson. An interval shows how much the number depends on the "
                      "draw of these pairs, not how much another training would change it.", muted=True)
    if evaluation.has_several_references:
        total = sum(map(len, evaluation.all_references))
        html += paragraph(f"The {count:,} sources have {total:,} references: BLEU and chrF compare a text with all "
                          "of its references, the exact match with any of them, and the error rates, here and below, "
                          "with the nearest one.", muted=True)
    values = {**evaluation.metrics, "level": LEVEL, "resamples": RESAMPLES,
              "intervals": {name: asdict(each) for name, each in intervals.items()}}
    return Section("accuracy", "Generated texts", html, values)


def lengths(subject: Subject) -> Section:
    """BLEU and character error rate by the length of the reference."""
    evaluation = subject.evaluation
    measured, unit = measured_lengths(subject)
    rows = []
    for chosen in buckets(measured):
        scores = text_metrics([evaluation.predictions[i].text for i in chosen],
                              [evaluation.all_references[i] for i in chosen])
        ratio = (sum(len(evaluation.predictions[i].text) for i in chosen)
                 / max(1, sum(len(evaluation.references[i]) for i in chosen)))
        rows.append({"shortest": int(measured[chosen].min()), "longest": int(measured[chosen].max()),
                     "pairs": len(chosen), "length_ratio": ratio, **scores})
    shown = [(span(row["shortest"], row["longest"]), f"{row['pairs']:,}", f"{row['bleu']:.2%}",
              f"{row['cer']:.2%}", f"{row['exact_match']:.2%}", f"{row['length_ratio']:.2f}") for row in rows]
    html = table((f"{unit} of the reference", "pairs", "BLEU", "character error rate", "exact match", "length ratio"),
                 shown, "By length of the reference", range(1, 6))
    html += paragraph("The length ratio is the number of generated characters divided by that of the references; "
                      "a value far below 1 means that the model stops too early.", muted=True)
    return Section("lengths", "Length", html, {"unit": unit, "buckets": rows})


def span(shortest: int, longest: int) -> str:
    """`3 to 7`, or `3` if both are equal."""
    return f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"


def measured_lengths(subject: Subject) -> tuple[np.ndarray, str]:
    """The lengths of the references (N,), and their unit: characters for images of text and for texts whose words no
    spaces divide, otherwise words.
    """
    references = subject.evaluation.references
    if subject.predictor.is_image_to_text or not has_words(references):
        return np.array([len(text) for text in references]), "characters"
    return np.array([len(text.split()) for text in references]), "words"


def buckets(measured: np.ndarray) -> list[np.ndarray]:
    """The indices of the texts in each of up to `BUCKETS` buckets of similar length, about equally many in each,
    shortest first; texts of equal length share a bucket.
    """
    edges = np.unique(np.quantile(measured, np.linspace(0, 1, BUCKETS + 1)[1:-1], method="higher"))
    numbers = np.searchsorted(edges, measured, side="right")
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def characters(subject: Subject) -> Section:
    """Which characters an image-to-text model confuses, leaves out and adds."""
    evaluation = subject.evaluation
    confused = confused_characters([each.text for each in evaluation.predictions], evaluation.references)
    occurring = Counter("".join(evaluation.references))
    rows = [{"reference": true, "generated": generated, "count": count, "occurrences": occurring.get(true, 0)}
            for (true, generated), count in confused.most_common()]
    shown = [(visible(row["reference"]), visible(row["generated"]), f"{row['count']:,}",
              f"{row['count'] / row['occurrences']:.2%}" if row["occurrences"] else "") for row in rows[:LISTED]]
    if not rows:
        return Section("confusion", "Characters", paragraph("All characters are right."), {"confused": []})
    html = table(("reference", "generated", "times", "share of this character"), shown, "Confused characters", (2, 3))
    html += cut_note(len(rows), LISTED, "pairs of characters")
    return Section("confusion", "Characters", html, {"confused": rows})


def confused_characters(generated: Sequence[str], references: Sequence[str]) -> Counter[tuple[str, str]]:
    """(reference, generated) character -> how often, by the fewest edits (Levenshtein)."""
    from rapidfuzz.distance import Levenshtein

    counts: Counter[tuple[str, str]] = Counter()
    for text, reference in zip(generated, references, strict=True):
        for edit in Levenshtein.editops(reference, text):
            true = ADDED if edit.tag == "insert" else reference[edit.src_pos]
            counts[true, MISSING if edit.tag == "delete" else text[edit.dest_pos]] += 1
    return counts


def visible(character: str) -> str:
    """A character for a table; invisible ones by name."""
    return {" ": "(space)", "\t": "(tab)", "\n": "(line break)"}.get(character, character)


def worst_texts(subject: Subject) -> Section:
    """The texts that differ most from their references."""
    evaluation, samples = subject.evaluation, subject.samples
    rates = error_rates(evaluation.predictions, evaluation.references)
    chosen = [int(i) for i in np.argsort(-rates, kind="stable")[:LISTED] if rates[i] > 0]
    rows = []
    for i in chosen:
        generated, reference = evaluation.predictions[i], evaluation.references[i]
        source = {} if samples.sources is None else {"source": samples.sources[evaluation.rows[i]]}
        rows.append({"name": samples.names[evaluation.rows[i]], **source, "reference": reference,
                     "generated": generated.text, "cer": float(rates[i]), "score": generated.score})
    if not rows:
        return Section("errors", "Worst texts", paragraph("All texts are right."), {"samples": []})
    html = paragraph("Highest character error rate first." + (
        "" if samples.read is None else " [a>b] is replaced, [a>] missing and [>b] additional."))
    html += picture_cards(subject, chosen) if samples.sources is None else table(
        ("source", "reference", "generated", "errors"),
        [(*(shortened(row[key]) for key in ("source", "reference", "generated")), f"{row['cer']:.0%}") for row in rows],
        "Worst texts", (3,))
    return Section("errors", "Worst texts", html, {"samples": rows})


def error_rates(predictions: Sequence, references: Sequence[str]) -> np.ndarray:
    """The character error rate of each text: (N,)."""
    return np.array([character_errors(each.text, reference) / max(1, len(reference))
                     for each, reference in zip(predictions, references, strict=True)])


def picture_cards(subject: Subject, chosen: Sequence[int]) -> str:
    """The images of text lines with their texts."""
    pictures = []
    for i in chosen:
        row, reference = subject.evaluation.rows[i], subject.evaluation.references[i]
        generated, name = subject.evaluation.predictions[i].text, subject.samples.names[row]
        picture = subject.predictor.preprocessing.preview(subject.samples.image(row), name)
        pictures.append(card(thumbnail_url(picture, WIDE), f"{name}: {shortened(reference)}",
                             [shortened(marked_differences(reference, generated)), f"reference {shortened(reference)}",
                              f"generated {shortened(generated)}", name]))
    return cards(pictures)


def source_attention(subject: Subject) -> Section:
    """The cross-attention of a few texts, from the one with the fewest errors to the one with the most."""
    key, title, model = "attention", "Attention", subject.predictor.model
    if not any(isinstance(layer, Attention) and layer.cross for layer in model.modules()):
        return missing(key, title, "no layer of the decoder has attention to the source")
    order = np.argsort(error_rates(subject.evaluation.predictions, subject.evaluation.references), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(subject.attention_images, len(order))).astype(int)]
    html = paragraph("Attention of each generated token (column) to the source (row), the mean of all layers and "
                     "heads; from a text with few errors to one with many.")
    shown = []
    for i in map(int, chosen):
        row = subject.evaluation.rows[i]
        source = subject.samples.image(row) if subject.samples.sources is None else subject.samples.sources[row]
        recorded = seq2seq_attention(subject.predictor, source)
        name = subject.samples.names[row]
        alt = f"Attention from the tokens of {shortened(recorded.text)!r} to the source {name}"
        above = left_to_right(shortened(name, 40), " → ", shortened(recorded.text, 80) or "(empty)")
        html += drawing(attention_url(recorded, above), alt)
        shown.append({"name": name, "generated": recorded.text})
    return Section(key, title, html, {"samples": shown})


def attention_url(recorded: Seq2SeqAttention, heading: str) -> str:
    """The figure of the mean cross-attention of one text."""
    cross = recorded.maps["target to source"]
    if recorded.image is None:
        return figure_url(matrix_picture, cross, heading)
    patches = TokenMaps({name: weights[:, :, recorded.prefix:] for name, weights in cross.layers.items()},
                        cross.queries, cross.keys[recorded.prefix:])
    return figure_url(image_to_text_picture, recorded.image, patches, recorded.grid, heading)


def matrix_picture(path: str, maps: TokenMaps, heading: str) -> str:
    """Queries by column and keys by row, so that long texts run from left to right; white means no attention."""
    names, cell = (maps.keys, maps.queries), 0.17  # inches
    wide, tall = min(max(cell * len(names[1]), 3.0), 16.0), min(max(cell * len(names[0]), 0.8), 8.0)
    figure = new_figure(wide + 1.0, tall + 1.2)
    axes = figure.subplots()
    axes.imshow(maps.mean().T, vmin=0, cmap=LIGHT.weights, interpolation="nearest", aspect="auto")
    style = {"fontsize": 7, "color": INK, "family": FONT}
    if wide / len(names[1]) > MIN_SPACING:
        axes.set_xticks(range(len(names[1])), [shorten(name, 12) for name in names[1]], rotation=90, **style)
    if tall / len(names[0]) > MIN_SPACING:
        axes.set_yticks(range(len(names[0])), [shorten(name, 12) for name in names[0]], **style)
    axes.tick_params(length=0)
    axes.spines[:].set_color(RULE)
    shown = cut_middle(drawable(heading), 70)
    lines = wrap(shown, int(wide * len(shown) / text_width(shown, TITLE, bold=True))) if shown.strip() else []
    set_title(axes, "\n".join(literal(left_to_right(line)) for line in lines))
    return save_figure(figure, path)


def pairs_data(subject: Subject) -> Section:
    """The number of pairs in each split, and what was left out."""
    source = subject.source
    rows = [(name, f"{len(split):,}") for name, split in source.splits.items()]
    html = table(("split", subject.unit), rows, "Samples of each split", (1,))
    if source.left_out:
        html += table(("file", "remark"), source.left_out[:LISTED], f"Left out ({len(source.left_out):,})")
    return Section("data", "Data", html, {"counts": {name: len(split) for name, split in source.splits.items()},
                                          "left_out": [list(each) for each in source.left_out]})
