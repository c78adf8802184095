"""What an evaluation of written texts leaves in a folder: predictions.csv, and for images the worst answers as a
picture.
"""

from os import PathLike
from pathlib import Path

from vit.data import LinePreprocessing, PairSplit
from vit.evaluation.pairs import PairEvaluation
from vit.evaluation.texts import character_errors
from vit.report.mistakes import mistakes_picture
from vit.report.tables import open_table

MOST = 24  # pictures of mistakes


def write_pairs(
    folder: str | PathLike[str], evaluation: PairEvaluation, split: PairSplit, line: LinePreprocessing | None
) -> None:
    """One row per pair in the order of the split: its name, source, what should be and what is written, and how wrong.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = ["source"] if split.sources is not None else []
    columns = ["name", *source, "reference", "answer", "right", "cer", "score"]
    with open_table(folder / "predictions.csv", columns) as table:
        for i, answer, reference in zip(evaluation.rows, evaluation.answers, evaluation.references, strict=True):
            source = {"source": split.sources[i]} if split.sources is not None else {}
            wrong = character_errors(answer.text, reference) / max(1, len(reference))
            right = int(answer.text == reference)
            cells = {"reference": reference, "answer": answer.text, "right": right, "cer": wrong, "score": answer.score}
            table.write({"name": answer.source, **source, **cells})
    if line is not None:
        write_mistakes(folder / "mistakes.png", evaluation, split, line)


def write_mistakes(path: Path, evaluation: PairEvaluation, split: PairSplit, line: LinePreprocessing) -> Path:
    """The wrong answers that the model was surest of, and their images."""
    answers, references = evaluation.answers, evaluation.references
    wrong = [i for i in range(len(answers)) if answers[i].text != references[i]]
    worst = sorted(wrong, key=lambda i: -answers[i].score)[:MOST]
    rows = [evaluation.rows[i] for i in worst]
    images = [line.preview(split.read(row), split.names[row]) for row in rows]
    said = [answers[i].text for i in worst]
    sure = [answers[i].certainty for i in worst]
    return mistakes_picture(path, images, [references[i] for i in worst], said, sure, [split.names[i] for i in rows])
