"""BLEU of a run's translations in the two usual variants: cased (sacreBLEU's default), and tokenized and lower-cased.

    python benchmarks/translation_bleu.py runs/multi30k/*/ --language de

Papers on Multi30k report BLEU on Moses-tokenized, lower-cased text; sacreBLEU's default is cased and uses its own
tokenizer. The numbers are not comparable, so both are printed with their signatures. Needs sacremoses (`pip install
sacremoses`).
"""

import argparse
import csv
import json
import statistics
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacremoses import MosesTokenizer


def scores(run: Path, tokenizer: MosesTokenizer) -> dict[str, float | str]:
    """Both scores of one run's predictions.csv, in points."""
    rows = predictions(run)
    generated, references = [row["generated"] for row in rows], [row["reference"] for row in rows]
    plain, split = BLEU(), BLEU(tokenize="none", lowercase=True)
    texts = [[tokenizer.tokenize(t, return_str=True, escape=False) for t in side] for side in (generated, references)]
    found = {
        "cased": plain.corpus_score(generated, [references]).score,
        "tokenised, lower-cased": split.corpus_score(texts[0], [texts[1]]).score,
    }
    signatures = [str(metric.get_signature()) for metric in (plain, split)]
    return {"run": str(run), "sentences": len(rows), **found, "signatures": signatures}


def predictions(run: Path) -> list[dict[str, str]]:
    """The rows of predictions.csv; exits if they are not texts."""
    file = run / "predictions.csv"
    if not file.is_file():
        raise SystemExit(f"{file} does not exist; give the folder of a finished run")
    with open(file, newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    if not rows or not {"generated", "reference"} <= rows[0].keys():
        raise SystemExit(f"{file} has no generated texts; give the folder of a translation run")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--language", default="de", help="of the translations, for the Moses tokenizer")
    options = parser.parse_args()
    tokenizer = MosesTokenizer(options.language)
    results = [scores(run, tokenizer) for run in options.runs]
    for result in results:
        print(f"{result['run']}: cased {result['cased']:.2f}, lower-cased {result['tokenised, lower-cased']:.2f}")
    means = {name: statistics.mean(r[name] for r in results) for name in ("cased", "tokenised, lower-cased")}
    print(json.dumps({"runs": results, "means": means}, indent=2))


if __name__ == "__main__":
    main()
