"""Comparison of two classifiers on the same samples: against brute force and scipy, and `vit compare`."""

import csv
import json
from functools import partial
from itertools import product

import numpy as np
import pytest
from rich.console import Console
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score

from vit.cli import main
from vit.cli.evaluation.compare import metrics_table, paired_table
from vit.evaluation.intervals.bootstrap import Interval
from vit.evaluation.intervals.paired import compare_paired, matched, mcnemar, read_predictions
from vit.evaluation.intervals.paired_labels import LabelAnswers, compare_label_sets
from vit.evaluation.intervals.text_bootstrap import TextStatistics, paired_bootstrap
from vit.report.summary import NARROW, print_table


def simulated(count=300, seed=0, first=0.8, second=0.7):
    random = np.random.default_rng(seed)
    return random.random(count) < first, random.random(count) < second


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (1, 0), (3, 3), (2, 7), (8, 1)])
def test_the_p_value_is_that_of_all_ways_to_divide_the_samples(only_first, only_second):
    total = only_first + only_second
    apart = [abs(2 * sum(ways) - total) for ways in product((0, 1), repeat=total)]
    assert mcnemar(only_first, only_second) == pytest.approx(np.mean(np.array(apart) >= abs(only_first - only_second)))


def test_equally_good_classifiers_are_rarely_called_different():
    p_values = np.array([compare_paired(*simulated(200, seed, 0.8, 0.8), resamples=2).p_value for seed in range(400)])
    assert 0.01 < (p_values < 0.05).mean() < 0.06  # the exact test is conservative


def test_the_interval_of_the_difference_is_that_of_scipy():
    first, second = simulated()
    found = compare_paired(first, second, resamples=6000)

    def difference(a, b, axis):
        return b.mean(axis=axis) - a.mean(axis=axis)

    theirs = stats.bootstrap((first.astype(float), second.astype(float)), difference, paired=True, vectorized=True,
                             n_resamples=6000, method="percentile", rng=1).confidence_interval
    assert found.difference.value == pytest.approx(second.mean() - first.mean())
    assert (found.difference.low, found.difference.high) == pytest.approx((theirs.low, theirs.high), abs=0.007)


def test_exchanging_the_two_changes_the_sign_alone():
    first, second = simulated()
    one, other = compare_paired(first, second), compare_paired(second, first)
    assert one.p_value == other.p_value and one.difference.value == -other.difference.value
    assert (one.only_first, one.only_second) == (other.only_second, other.only_first)


def write(folder, right, name="{}.png", true="cat"):
    folder.mkdir()
    rows = [f"{name.format(i)},{true},{int(each)}" for i, each in enumerate(right)]
    (folder / "predictions.csv").write_text("\n".join(["file,true,right", *rows]) + "\n")
    return folder


def test_samples_are_matched_by_name(tmp_path):
    first = read_predictions(write(tmp_path / "a", [1, 0, 1]))
    second = dict(reversed(read_predictions(write(tmp_path / "b", [0, 0, 1])).items()))
    assert [each.tolist() for each in matched(first, second, ("a", "b"))] == [[True, False, True], [False, False, True]]


def test_the_command_prints_and_writes_the_comparison(tmp_path, capsys):
    first, second = simulated()
    runs = [str(write(tmp_path / name, right)) for name, right in (("a", first), ("b", second), ("c", first))]
    assert main(["compare", *runs, "--json", str(tmp_path / "n.json")]) == 0
    found = json.loads((tmp_path / "n.json").read_text())["compared"]
    assert found[runs[1]]["p_value"] == compare_paired(first, second).p_value and found[runs[2]]["p_value"] == 1
    assert f"{second.mean():.2%}" in capsys.readouterr().out


def test_the_table_in_80_columns_names_runs_below_their_common_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    above = tmp_path / "projects" / "experiments"
    (above / "digits").mkdir(parents=True)
    runs = [str(write(above / "digits" / name, right)) for name, right in zip(("first", "deep", "wide"), [
        [1, 0, 1], [1, 0, 0], [0, 0, 0]], strict=True)]
    assert main(["compare", *runs]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if "%  " in line] == ["deep", "wide"]
    assert "compared with first" in shown
    assert f"allrunsarein{above / 'digits'}" in "".join(shown.split())  # however the caption is wrapped
    texts = [write_texts(above / name, ["a cat"] * 3, ["a cat"] * 3) for name in ("one", "two")]
    assert main(["compare", *texts]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "+0.00%" in line] == ["two"] * 3


def test_names_of_runs_without_a_common_folder_are_whole():
    from vit.cli.evaluation.compare import short_names

    assert short_names(["a", "/tmp/b"]) == ("", {"a": "a", "/tmp/b": "/tmp/b"})
    assert short_names(["runs/a/x", "runs/b/x"]) == ("runs", {"runs/a/x": "a/x", "runs/b/x": "b/x"})
    assert short_names(["runs/a", "runs/a/eval"]) == ("runs", {"runs/a": "a", "runs/a/eval": "a/eval"})


def write_texts(folder, texts, references, column="generated"):
    folder.mkdir()
    with open(folder / "predictions.csv", "w", newline="") as file:
        csv.writer(file).writerows([("name", "reference", column), *zip(range(len(texts)), references, texts,
                                                                        strict=True)])
    return str(folder)


def test_translators_are_compared_by_the_paired_bootstrap_of_sacrebleu(tmp_path, capsys):
    random = np.random.default_rng(3)
    references = [" ".join(random.choice(["a", "the", "cat", "dog", "sat", "on", "it"], 9)) for _ in range(60)]
    good, bad = ([" ".join(word for word in each.split() if random.random() < share) for each in references]
                 for share in (0.95, 0.8))
    runs = [write_texts(tmp_path / name, texts, references) for name, texts in (("good", good), ("bad", bad))]
    assert main(["compare", *runs, "--json", str(tmp_path / "n.json")]) == 0
    found = json.loads((tmp_path / "n.json").read_text())["compared"][runs[1]]["bleu"]
    _, theirs = PairedTest([("good", good), ("bad", bad)], {"BLEU": BLEU(references=[references])}, None, "bs",
                           n_samples=1000)()
    ours, reference = found["value"], (theirs["BLEU"][1].score - theirs["BLEU"][0].score) / 100
    assert ours == pytest.approx(reference) and found["low"] < ours < found["high"] < 0
    assert found["p_value"] == pytest.approx(theirs["BLEU"][1].p_value, abs=0.02) and "bleu" in capsys.readouterr().out
    other = write_texts(tmp_path / "other", good, references[::-1])
    assert main(["compare", runs[0], other]) == 1 and "other references from row 1 on" in capsys.readouterr().err


def test_the_exact_match_of_translators_that_are_both_wrong_at_times_is_that_of_mcnemar():
    references = ["a cat"] * 60
    first = ["a cat"] * 50 + ["a bat"] * 10
    second = ["a cat"] * 30 + ["a dog"] * 22 + ["a cat"] * 4 + ["the dogs"] * 4
    found = paired_bootstrap(*(TextStatistics(each, references) for each in (first, second)), resamples=10)
    assert found["exact_match"][1] == mcnemar(20, 4) and found["exact_match"][0].value == pytest.approx(-16 / 60)


def test_a_few_texts_have_no_p_value_of_bleu_but_the_exact_test(tmp_path, capsys):
    """29 texts: of 8 that only one translator gets right, all are the first one's, so p = 2 / 2^8."""
    references = [f"the cat number {i} sat" for i in range(29)]
    wrong = [text.replace("cat", "dog") if i < 8 else text for i, text in enumerate(references)]
    runs = [write_texts(tmp_path / "a", references, references),
            write_texts(tmp_path / "b", wrong, references, column="answer")]  # as older versions wrote it
    assert main(["compare", *runs, "--json", str(tmp_path / "n.json")]) == 0
    found = json.loads((tmp_path / "n.json").read_text())["compared"][runs[1]]
    assert found["exact_match"]["p_value"] == pytest.approx(2 / 2**8)
    assert found["exact_match"]["value"] == pytest.approx(-8 / 29) and found["exact_match"]["low"] is None
    assert found["bleu"]["value"] < 0 and found["bleu"]["p_value"] is None and found["bleu"]["low"] is None
    assert "need 50 or more" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("change", "message"), [
    ({"right": [1, 0]}, "1 sample is in only one of"),
    ({"true": "dog"}, "has the label 'cat' in"),
    ({"name": "same"}, "has 3 rows for 1 file"),
])
def test_other_samples_are_one_line(tmp_path, capsys, change, message):
    first = write(tmp_path / "a", [1, 0, 1])
    second = write(tmp_path / "b", **({"right": [1, 0, 1]} | change))
    assert main(["compare", str(first), str(second)]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_folders_without_predictions_of_a_classifier_are_named(tmp_path, capsys):
    first, second = write(tmp_path / "a", [1]), tmp_path / "b"
    second.mkdir()
    assert main(["compare", str(first), str(second)]) == 1
    assert "predictions.csv cannot be read" in capsys.readouterr().err
    (second / "predictions.csv").write_text("file,true,right\n")
    assert main(["compare", str(first), str(second)]) == 1
    assert "predictions.csv has no rows" in capsys.readouterr().err
    (second / "predictions.csv").write_text("file,reference,generated\n")
    assert main(["compare", str(second), str(second)]) == 1
    assert "predictions.csv has no rows" in capsys.readouterr().err
    (second / "predictions.csv").write_text("file,target\na,b\n")
    assert main(["compare", str(first), str(second)]) == 1
    assert "has no column true" in capsys.readouterr().err
    for text in ("file,true,right\na,x,1\nb,x\n", "name,reference,generated\na,b,c\nb,b\n"):
        (second / "predictions.csv").write_text(text)
        assert main(["compare", str(second), str(second)]) == 1
        assert "row 2 of 2 ends before its last cell" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", str(first)]) == 2


def simulated_labels(folder, truth, random, quality):
    """The predictions.csv of a multi-label model whose probabilities separate the labels by `quality`."""
    folder.mkdir()
    probabilities = 1 / (1 + np.exp(-(quality * truth - quality / 2 + random.normal(size=truth.shape))))
    names, predicted = np.array(["a", "b|c", "d"]), probabilities > 0.5
    with open(folder / "predictions.csv", "w", newline="") as file:
        csv.writer(file).writerows([
            ("file", "true", "labels", "right", "loss", *(f"p({name})" for name in names)),
            *((f"{i}.png", ";".join(names[truth[i]]), ";".join(names[predicted[i]]),
               int((truth[i] == predicted[i]).all()), 0.5, *probabilities[i]) for i in range(len(truth)))])
    return str(folder), probabilities


def test_several_labels_are_compared_in_average_precision_f1_and_exact_match(tmp_path, capsys):
    random = np.random.default_rng(0)
    truth = random.random((120, 3)) < (0.5, 0.3, 0.2)
    (good, first), (bad, second) = (simulated_labels(tmp_path / name, truth, random, quality)
                                    for name, quality in (("good", 5), ("bad", 1)))
    assert main(["compare", good, bad, "--json", str(tmp_path / "n.json")]) == 0
    found = json.loads((tmp_path / "n.json").read_text())["compared"][bad]
    expected = {
        "map": [average_precision_score(truth, each, average="macro") for each in (first, second)],
        "f1": [f1_score(truth, each > 0.5, average="macro") for each in (first, second)],
        "exact_match": [((each > 0.5) == truth).all(axis=1).mean() for each in (first, second)],
    }
    for name, (before, after) in expected.items():
        assert found[name]["value"] == pytest.approx(after - before)
        assert found[name]["low"] < found[name]["value"] < found[name]["high"] < 0 and found[name]["p_value"] < 0.01
    right = [((each > 0.5) == truth).all(axis=1) for each in (first, second)]
    assert found["exact_match"]["p_value"] == mcnemar(int((right[0] & ~right[1]).sum()),
                                                      int((right[1] & ~right[0]).sum()))
    assert "on 120 images" in " ".join(capsys.readouterr().out.split())


def test_a_few_images_with_several_labels_have_no_interval_and_no_p_value_of_map():
    random = np.random.default_rng(0)
    truth = random.random((49, 2)) < 0.5
    first, second = (LabelAnswers([str(i) for i in range(49)], ["a", "b"], truth, each > 0.5, each)
                     for each in random.random((2, 49, 2)))
    found = compare_label_sets(first, second, resamples=10)
    assert all(interval.low is interval.high is None for interval, _ in found.values())
    p_values = {name: p_value for name, (_, p_value) in found.items()}
    assert 0 < p_values.pop("exact_match") <= 1 and p_values == {"map": None, "f1": None}


def test_label_sets_are_matched_by_image_and_class(tmp_path, capsys):
    random = np.random.default_rng(0)
    truth = random.random((60, 3)) < 0.5
    first = simulated_labels(tmp_path / "first", truth, random, 2)[0]
    rows = (tmp_path / "first" / "predictions.csv").read_text().splitlines()
    second = tmp_path / "second"
    second.mkdir()
    (second / "predictions.csv").write_text("\n".join([rows[0], *rows[:0:-1]]))
    assert main(["compare", first, str(second), "--json", str(tmp_path / "n.json")]) == 0
    found = json.loads((tmp_path / "n.json").read_text())["compared"][str(second)]
    assert all(each["low"] == each["high"] == 0 and each["p_value"] == 1 for each in found.values())
    name, label, rest = rows[4].split(",", 2)
    changed = [*rows[:4], f"{name},{'d' if label == 'a' else 'a'},{rest}", *rows[5:]]
    for lines, message in ((rows[:-1], "1 sample is in only one of"), (changed, "'3.png' has other labels in"),
                           ([row.replace("p(d)", "p(e)") for row in rows], "2 classes are in only one of"),
                           ([rows[0], *(row.rpartition(",")[0] for row in rows[1:])], "is damaged"),
                           ([*rows[:3], f"{rows[3].rpartition(',')[0]},nan"], "that is not a finite number"),
                           ([*rows, rows[1]], "has 61 rows for 60 files")):
        (second / "predictions.csv").write_text("\n".join(lines))
        assert main(["compare", first, str(second)]) == 1
        assert message in " ".join(capsys.readouterr().err.split())


def test_resamples_without_any_label_do_not_count():
    """A third of the resamples lack the only image with a label, so that mAP is undefined in them."""
    truth = np.zeros((60, 2), bool)
    truth[7, 0] = True
    predictions = LabelAnswers([str(i) for i in range(60)], ["a", "b"], truth, truth, truth.astype(float))
    found = compare_label_sets(predictions, predictions, resamples=200)
    assert all(change.value == change.low == change.high == 0 and p_value == 1 for change, p_value in found.values())


@pytest.mark.parametrize("width", [55, 60, 70, 80])
@pytest.mark.parametrize("name", ["b", "a_run_with_a_name_that_is_long_for_a_terminal"])
def test_the_numbers_of_a_comparison_are_whole_in_narrow_terminals(width, name):
    """In 60 columns the p-value 1.14e-13 was 1.14e-1."""
    right = np.arange(360) < 313
    found = compare_paired(right, np.arange(360) < 357)
    console = Console(width=width)
    with console.capture() as shown:
        console.print(paired_table("runs/a", {f"runs/{name}": found}, narrow=width < NARROW))
    words = set(shown.get().split())
    assert {"99.17%", "+12.22%", "0", "44", f"{found.p_value:.3g}"} <= words and "e-" in f"{found.p_value:.3g}"
    assert {f"{found.difference.low:+.2%}", f"{found.difference.high:+.2%}"} <= words
    assert "differen" not in words


def test_the_differences_of_texts_are_whole_in_a_narrow_terminal(monkeypatch, capsys):
    """In 55 columns an interval was on three lines, below the heading differen/ce."""
    monkeypatch.setenv("COLUMNS", "55")
    change = Interval(0.1, -0.0123, 0.1123, "bootstrap")
    found = {"runs/2026-11-29_19-48-39": {"exact_match": (change, 0.0123)}}
    print_table(partial(metrics_table, "runs/a", (100, "text", 10), found))
    text = capsys.readouterr().out
    assert "difference" in text and "-1.23% to +11.23%" in text and max(map(len, text.splitlines())) <= 55
