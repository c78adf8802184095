"""Figures: confusion matrix, learning curves and wrong predictions, for unusual names and sizes."""

import csv
import subprocess
import sys
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image
from scipy.sparse import coo_array

from vit.data import TextSplit
from vit.evaluation import Evaluation, LabelScore
from vit.evaluation.classification import count_confusions
from vit.messages import left_to_right
from vit.report import multi_label
from vit.report.attention import figures as attention_figures
from vit.report.attention.maps import TokenMaps
from vit.report.attention.positions import positions_picture
from vit.report.evaluation import write_text_evaluation
from vit.report.figures import confusion, curves, misclassified, reliability
from vit.report.figures.confusion import confusion_picture, most_frequent_errors
from vit.report.figures.curves import curves_picture
from vit.report.figures.misclassified import misclassified_picture
from vit.report.figures.style import DARK_ORANGE, NOTE, TITLE, drawable, shorten, shorten_all
from vit.report.figures.theme import DARK, LIGHT
from vit.report.logged_values import epoch_text, read_curves
from vit.report.multi_label import labels_picture
from vit.report.sections import generated_texts


def test_a_picture_needs_no_pyplot_and_so_no_global_state(tmp_path):
    code = ("import sys, numpy;"
            "from vit.report.figures.confusion import confusion_picture;"
            f"confusion_picture({str(tmp_path / 'a.png')!r}, numpy.eye(2), ['a', 'b']);"
            "assert 'matplotlib.pyplot' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("classes", [2, 10, 31, 130])
def test_confusion_picture_shows_correct_predictions_blue_and_wrong_ones_orange(tmp_path, classes):
    confusion = np.eye(classes, dtype=int) * 9
    confusion[0, 1] = 4
    path = confusion_picture(tmp_path / "new" / "confusion.png", confusion, [f"class {i}" for i in range(classes)])
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    blue = (pixels[..., 2] > pixels[..., 0] + 60).sum()
    orange = (pixels[..., 0] > pixels[..., 2] + 60).sum()
    assert blue > orange > 0


def test_confusion_picture_without_mistakes_and_with_an_empty_class(tmp_path):
    confusion_picture(tmp_path / "a.png", np.diag([3, 0]), ["yes", "no"])
    confusion_picture(tmp_path / "b.svg", np.zeros((2, 2), int), ["$cost$", "a_very_long_name" * 9])
    assert (tmp_path / "b.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.filterwarnings("error")
def test_names_with_characters_that_the_font_lacks_are_drawn(tmp_path):
    assert confusion_picture(tmp_path / "a.png", np.eye(2), ["猫", "हाथी"]).exists()


def test_confusion_picture_refuses_another_number_of_classes(tmp_path):
    with pytest.raises(ValueError, match=r"\(2, 2\), but there are 3 classes"):
        confusion_picture(tmp_path / "a.png", np.eye(2), ["a", "b", "c"])


def log(path, rows):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_curves_are_read_in_epochs_and_gaps_are_left_out(tmp_path):
    rows = []
    for step in range(40):
        rows.append({"epoch": step // 10, "step": step, "train/loss": 2 - step / 40, "lr-AdamW": 1e-3})
        if step % 10 == 9:
            rows.append({"epoch": step // 10, "step": step, "val/loss": 1 - step / 80, "val/accuracy": step / 40})
    path = log(tmp_path / "metrics.csv", rows)
    curves = read_curves(path)
    assert set(curves) == {"train/loss", "lr-AdamW", "val/loss", "val/accuracy"}
    np.testing.assert_allclose(curves["val/accuracy"].x, [1, 2, 3, 4])
    np.testing.assert_allclose(curves["val/accuracy"].y, [9 / 40, 19 / 40, 29 / 40, 39 / 40])
    assert curves["val/accuracy"].best(highest=True) == 3
    picture = curves_picture(tmp_path / "curves.png", path)
    width, height = Image.open(picture).size
    assert width > 3 * height  # three panels side by side


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_end_at_whole_numbers_however_steps_are_counted(tmp_path, first):
    rows = [{"epoch": epoch, "step": 5 * epoch + 4 + first, "val/loss": 1.0} for epoch in range(3)]
    rows.append({"epoch": 3, "step": 17 + first, "val/loss": 1.0})  # stopped within the epoch
    np.testing.assert_allclose(read_curves(log(tmp_path / "m.csv", rows))["val/loss"].x, [1, 2, 3, 3.6])


def test_a_start_that_was_validated_is_at_epoch_0(tmp_path):
    rows = [{"epoch": 0, "step": 0, "val/loss": 1.0}]
    rows += [{"epoch": epoch, "step": 7 * epoch, "val/loss": 1.0, "train/loss": 1.0} for epoch in (1, 2)]
    curves = read_curves(log(tmp_path / "m.csv", rows))
    np.testing.assert_allclose(curves["val/loss"].x, [0, 1, 2])
    np.testing.assert_allclose(curves["train/loss"].x, [1, 2])


def test_curves_of_a_run_that_diverged_or_barely_began(tmp_path):
    rows = [{"epoch": 0, "step": i, "train/loss": "nan", "val/loss": "nan", "val/accuracy": 0.1} for i in range(3)]
    assert curves_picture(tmp_path / "nan.png", log(tmp_path / "nan.csv", rows))
    one = [{"epoch": 0, "step": 0, "train/loss": 2.3}]
    assert curves_picture(tmp_path / "one.png", log(tmp_path / "one.csv", one))
    assert curves_picture(tmp_path / "none.png", log(tmp_path / "none.csv", [{"epoch": 0, "step": 0}])) is None
    assert not (tmp_path / "none.png").exists()


def test_an_infinite_value_is_no_best_and_epochs_without_a_step_are_no_error(tmp_path):
    rows = [{"epoch": epoch, "step": 3, "val/loss": loss} for epoch, loss in enumerate(["-inf", 2.0, 1.0])]
    assert read_curves(log(tmp_path / "same.csv", rows))["val/loss"].x == pytest.approx([1.0])
    rows = [row | {"step": 4 * (row["epoch"] + 1)} for row in rows]
    assert read_curves(log(tmp_path / "infinite.csv", rows))["val/loss"].best(highest=False) == 2


def test_mistakes_picture_of_grey_images_colour_images_and_none(tmp_path):
    images = [np.full((8, 8, 3), 200, np.uint8), np.full((80, 60, 1), 90, np.uint8)]
    names = ["x/1.png", "x/2.png"]
    path = misclassified_picture(tmp_path / "some.png", images, ["a", "b"], ["b", "a"], [0.9, 0.8], names)
    assert Image.open(path).size[0] > 400
    assert misclassified_picture(tmp_path / "none.png", [], [], [], [], []).exists()
    wide = [np.zeros((32, width, 3), dtype=np.uint8) for width in (100, 200)]
    path = misclassified_picture(tmp_path / "wide.png", wide, ["a", "b"], ["b", "a"], [0.9, 0.8], ["1.png", "2.png"])
    width, height = Image.open(path).size
    assert width > 2 * height  # no empty half below lines of text


def test_long_and_unusual_names_are_shortened():
    assert shorten("tench") == "tench"
    assert shorten("a" * 12 + "b" * 30, 10) == "aaaa…bbbbb"
    assert shorten("a$b\n") == r"a\$b?"
    assert shorten("$" * 12, 10) == r"\$" * 4 + "…" + r"\$" * 5  # no escape is cut


STARTS, SIDES = ("photograph_of_digit", "photographs_of_a_number"), ("east", "WEST $x$")
LONG = [f"{start}_{digit}_{side}_seen_from_the_side_of_the_street"
        for start in STARTS for side in SIDES for digit in range(9)]


@pytest.mark.parametrize("length", [8, 14, 24])
def test_different_names_remain_different_when_they_are_shortened(length):
    for names in (LONG, [*LONG, "cat", "cat"], ["x" * 30 + a + "y" * 30 + b + "z" * 30 for a in "ab" for b in "ab"],
                  ["a" * i for i in range(20, 60)]):
        shown = shorten_all(names, length)
        assert len({*shown}) == len({*names}) and max(len(each.replace("\\", "")) for each in shown) <= length
    assert shorten_all(["tench", "a" * 12 + "b" * 30], 10) == ["tench", "aaaa…bbbbb"]
    assert shorten_all([f"IMG_2024_{i}_of_the_camera" for i in (17, 25)], 12) == ["…17_of_the_…", "…25_of_the_…"]


def test_text_is_neither_cut_off_nor_drawn_over_other_text(tmp_path, monkeypatch):
    figures = []
    for module in (confusion, curves, misclassified, generated_texts):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    pairs = np.zeros((len(LONG), len(LONG)), int)
    pairs[np.arange(len(LONG)), np.arange(len(LONG))[::-1]] = 3
    confusion_picture(tmp_path / "a.png", pairs, LONG)
    rows = [{"epoch": epoch, "step": epoch, "val/loss": 1.0, "lr": 0.1} for epoch in (1, 2)]
    curves_picture(tmp_path / "b.png", log(tmp_path / "metrics.csv", rows), "run", "Only the training loss")
    images = [np.zeros((8, 8, 1), np.uint8)] * 12
    misclassified_picture(tmp_path / "c.png", images, LONG[:12], LONG[12:24], [1.0] * 12, LONG[:12])
    maps = TokenMaps({"layer": np.full((1, 9, 9), 1 / 9)}, list("abcdefghi"), list("abcdefghi"))
    generated_texts.matrix_picture(tmp_path / "d.png", maps, "questions, test row 367: third, predicted second, 34%")
    for figure in figures:
        figure.draw_without_rendering()
        shown = [text for text in figure.findobj(Text) if any(letter.isalpha() for letter in text.get_text())]
        boxes = {text.get_text(): text.get_window_extent() for text in shown}
        assert not [text for text, box in boxes.items() if box.x0 < 0 or box.x1 > figure.bbox.x1]
        if figure is figures[1]:
            assert boxes["Only the training loss"].y1 <= boxes["epoch"].y0
    for figure, start, count in ((figures[0], "…", len(LONG)), (figures[2], "true: ", 12), (figures[2], "pred: ", 12)):
        assert len({text.get_text() for text in figure.findobj(Text) if text.get_text().startswith(start)}) >= count


@pytest.fixture
def drawn_curves(monkeypatch, tmp_path):
    """The figure of the learning curves of these rows."""
    def draw(rows, best_epoch=None):
        figures = []
        monkeypatch.setattr(curves, "save_figure", lambda figure, path: figures.append(figure))
        curves_picture(tmp_path / "a.png", log(tmp_path / "metrics.csv", rows), best_epoch=best_epoch)
        return figures[0]
    return draw


@pytest.mark.parametrize(("best_epoch", "epoch"), [(3, 3), (4, 4), (None, 2)])
def test_of_equal_accuracies_the_epoch_is_marked_that_training_selected(drawn_curves, best_epoch, epoch):
    rows = [{"epoch": i, "step": 5 * i, "val/loss": 1.0, "val/accuracy": rate}
            for i, rate in enumerate((0.5, 0.9, 0.9, 0.9), 1)]
    texts = [text.get_text() for text in drawn_curves(rows, best_epoch).findobj(Text)]
    assert f"best validation 90.00% after epoch {epoch}" in texts


def test_the_curves_of_one_epoch_are_points_at_epoch_1(drawn_curves):
    figure = drawn_curves([{"epoch": 1, "step": 9, "val/loss": 2.0, "train/loss": 2.1, "val/accuracy": 0.5, "lr": 0.0}])
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left").strip() for axes in figure.axes] == ["Loss", "Accuracy"]  # no rate to see
    for axes in figure.axes:
        assert 1 in axes.get_xticks() and all(tick == int(tick) for tick in axes.get_xticks())
        box = axes.get_legend().get_window_extent()
        assert not any(box.contains(*axes.transData.transform(line.get_xydata()[0])) for line in axes.lines)


@pytest.mark.parametrize(("names", "rotation"), [
    (["first", "second", "third"], 0), (list("0123456789"), 0), (["a long name"] * 9, 90),
    ([str(i) for i in range(40)], 90),
])
def test_class_names_are_turned_only_where_they_do_not_fit(tmp_path, monkeypatch, names, rotation):
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    confusion_picture(tmp_path / "a.png", np.eye(len(names)), names)
    assert {label.get_rotation() for label in figures[0].axes[0].get_xticklabels()} == {rotation}


@pytest.mark.parametrize(("samples", "unit"), [
    (TextSplit(np.array([0, 1]), ["1", "2"], (["x", "y"],)), "texts"), (SimpleNamespace(names=["1", "2"]), "images"),
])
def test_the_confusion_figure_counts_what_the_split_has(tmp_path, monkeypatch, samples, unit):
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    write_text_evaluation(tmp_path, evaluated(), samples)
    assert any(text.get_text() == f"true → predicted, {unit}" for text in figures[0].findobj(Text))


def test_headings_are_no_formulas(tmp_path):
    heading = "my $photos$_$2024$_ test"  # of a folder
    confusion_picture(tmp_path / "a.png", np.eye(2), ["a", "b"], heading)
    rows = [{"epoch": 0, "step": 0, "val/loss": 1.0}, {"epoch": 1, "step": 1, "val/loss": 0.5}]
    curves_picture(tmp_path / "b.png", log(tmp_path / "metrics.csv", rows), heading, heading)
    labels_picture(tmp_path / "c.png", [LabelScore("a", 3, 0.5, 0.5, 0.5, 0.5, 0.5)], heading)
    positions_picture(tmp_path / "d.png", np.eye(4), (2, 2), heading)


def test_the_memory_of_a_confusion_picture_is_bounded(tmp_path):
    """Of 3,000 classes the matrix of counts takes 72 MB, and drawing every cell of it takes 0.9 GB more."""
    import tracemalloc

    confusion = np.diag(np.full(3000, 5))
    confusion[7, 2900] = 4
    tracemalloc.start()
    path = confusion_picture(tmp_path / "c.png", confusion, [f"class {i}" for i in range(3000)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.exists() and peak < 450e6, f"{peak / 1e6:.0f} MB"


def test_the_most_frequent_errors_are_those_of_the_dense_matrix():
    """Also where correct classes are more frequent, cells are stored zeros, and counts are equal."""
    dense = np.random.default_rng(0).integers(0, 4, (7, 7)) + 9 * np.eye(7, dtype=int)
    true, predicted = (index.ravel() for index in np.indices(dense.shape))
    confusion = coo_array((dense.ravel(), (true, predicted)), dense.shape)  # with stored zeros
    cells = [(-dense[i, j], i, j) for i, j in np.ndindex(dense.shape) if i != j and dense[i, j]]
    for count in (3, 100):
        assert most_frequent_errors(confusion, count) == [(i, j) for _, i, j in sorted(cells)[:count]]


def test_names_whose_letters_no_font_has_remain_different():
    names = [chr(0x12000 + i) * 2 for i in range(3)] + ["a cat", chr(0x12000) + " cat"]  # cuneiform
    assert shorten_all(names) == ["□…(1)", "□…(2)", "□…(3)", "a cat", "□ cat"]


def test_names_that_become_equal_have_the_position_of_their_class_in_all_figures(tmp_path, monkeypatch):
    """In mistakes.png the third class was "□…(1)", as the first one is in confusion.png."""
    figures = []
    for module in (misclassified, multi_label):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    names = [chr(0x12000 + i) * 2 for i in range(3)]  # cuneiform
    assert shorten_all([names[2], names[1]], all_names=names) == ["□…(3)", "□…(2)"]
    image = [np.zeros((8, 8, 1), np.uint8)]
    misclassified_picture(tmp_path / "a.png", image, [names[1]], [names[2]], [0.5], ["a.png"], names)
    labels_picture(tmp_path / "b.png", [LabelScore(name, 3, 0.9 - i / 10, 0.5, 0.5, 0.5, 0.5)
                                        for i, name in enumerate(names)], "labels", most=2)
    texts = [text.get_text() for figure in figures for text in figure.findobj(Text)]
    assert {"pred: □…(3), 50%", "true: □…(2)", "□…(2) (3)", "□…(3) (3)"} <= set(texts)


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "white"), (DARK, DARK.paper)])
def test_colours_of_text_have_contrast(colours, paper):
    """At least 4.5, as WCAG 2 asks for of text: the tokens of search trees are small."""
    assert LIGHT.orange == DARK_ORANGE
    for colour in (colours.ink, colours.muted, colours.blue, colours.orange):
        assert confusion.contrast(np.array(to_rgb(colour)), np.array(to_rgb(paper))) >= 4.5


@pytest.mark.parametrize(("true", "predicted"), [("שלום", "猫"), ("سيارة", "قطة"), ("(x)", "שלום")])
def test_errors_are_read_from_left_to_right_in_all_scripts(tmp_path, monkeypatch, true, predicted):
    """Without a mark, a text that begins with an Arabic or Hebrew letter runs from right to left, with the prediction
    on the left of the arrow.
    """
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    confusion_picture(tmp_path / "a.png", np.array([[1, 2], [0, 1]]), [true, predicted])
    error = next(text.get_text() for text in figures[0].findobj(Text) if " → " in text.get_text()
                 and "true" not in text.get_text())
    assert unicodedata.bidirectional(error[0]) == "L" and "\u200e → \u200e" in error
    assert left_to_right("a", " → ", "b") == "a → b"


def test_spaces_and_joiners_of_all_scripts_are_drawn():
    assert drawable("\u3000a\u00a0b") == " a b" and drawable("می\u200cخواهم") == "می\u200cخواهم"
    assert drawable("a\nb\u202ec") == "a?b?c"


def test_the_heading_of_text_attention_has_the_prediction_before_its_probability(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(generated_texts, "save_figure", lambda figure, path: figures.append(figure))
    maps = TokenMaps({"0": np.ones((1, 4, 4)) / 4}, list("abcd"), list("abcd"))
    heading = left_to_right("a.csv line 5", ": ", "سلبي جدا", ", predicted ", "سلبي جدا", ", 38.9%")
    generated_texts.matrix_picture(tmp_path / "a.png", maps, heading)
    lines = figures[0].axes[0].get_title(loc="left").split("\n")
    assert len(lines) > 1 and all(unicodedata.bidirectional(line[0]) == "L" for line in lines)
    assert "\u200e, 38.9%" in lines[-1]


def test_the_probability_is_to_the_right_of_an_arabic_name(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(misclassified, "save_figure", lambda figure, path: figures.append(figure))
    misclassified_picture(tmp_path / "a.png", [np.zeros((8, 8, 1), np.uint8)], ["a"], ["سيارة"], [0.32], ["a.png"])
    assert any(text.get_text().endswith("\u200e, 32%") for text in figures[0].findobj(Text))


@pytest.mark.parametrize("letter", ["R", "W", "é", "i"])
def test_headings_of_attention_end_within_the_figure(tmp_path, monkeypatch, letter):
    drawn = []
    for module in (attention_figures, generated_texts):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: drawn.append(figure))
    maps = TokenMaps({"0": np.ones((1, 4, 4)) / 4}, list("abcd"), list("abcd"))
    attention_figures.tokens_picture(tmp_path / "a.png", maps, letter * 300)
    generated_texts.matrix_picture(tmp_path / "b.png", maps, letter * 300)
    for figure in drawn:
        figure.draw_without_rendering()
        headings = [text for text in figure.findobj(Text) if letter * 5 in text.get_text()]
        assert headings and all(text.get_window_extent().x1 <= figure.bbox.x1 for text in headings)


@pytest.mark.parametrize(("tokens", "heads"), [(2, 1), (12, 4), (60, 8)])
def test_a_map_of_tokens_states_which_side_attends(tmp_path, monkeypatch, tokens, heads):
    drawn = []
    monkeypatch.setattr(attention_figures, "save_figure", lambda figure, path: drawn.append(figure))
    names = [f"token {i}" for i in range(tokens)]
    attention_figures.tokens_picture(tmp_path / "a.png", TokenMaps({"0": np.full((heads, tokens, tokens), 1 / tokens)},
                                                                   names, names))
    drawn[0].draw_without_rendering()
    note = next(text for text in drawn[0].findobj(Text) if text.get_text().startswith("attention of a row to a column"))
    box, left = note.get_window_extent(), drawn[0].subfigs[0].bbox
    assert left.x0 <= box.x0 and box.x1 <= left.x1


def test_the_number_of_images_is_to_the_right_of_an_arabic_label(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(multi_label, "save_figure", lambda figure, path: figures.append(figure))
    labels_picture(tmp_path / "a.png", [LabelScore("قطة", 3, 0.5, 0.5, 0.5, 0.5, 0.5)], "Labels")
    assert "\u200eقطة\u200e (3)" in [text.get_text() for text in figures[0].findobj(Text)]


def test_long_headings_end_before_the_next_axes(tmp_path, monkeypatch, drawn_curves):
    figures = []
    for module in (confusion, reliability, curves):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    heading = "photos of a folder with a very long name, test split of the second version " * 3
    confusion_picture(tmp_path / "a.png", np.eye(2), ["a", "b"], heading)
    reliability.reliability_picture(tmp_path / "b.png", evaluated(), heading)
    rows = [{"epoch": i, "step": i, "val/loss": 1.0, "val/accuracy": 0.5} for i in (1, 2)]
    curves_picture(tmp_path / "c.png", log(tmp_path / "metrics.csv", rows), heading)
    for figure in figures:
        figure.draw_without_rendering()
        shown = [text for text in figure.findobj(Text) if text.get_text().startswith("photos of")]
        boxes = [text.get_window_extent() for text in shown]
        others = [text.get_window_extent() for text in figure.findobj(Text) if text.get_text().strip()
                  and text.axes not in {each.axes for each in shown} and text.get_fontsize() in (TITLE, NOTE)]
        assert boxes and all(box.x1 <= figure.bbox.x1 for box in boxes)
        assert not any(box.overlaps(other) for box in boxes for other in others)


def test_negative_losses_are_inside_the_axes(drawn_curves):
    rows = [{"epoch": i, "step": i, "val/loss": -i, "train/loss": 1 - i} for i in range(1, 9)]
    low, high = drawn_curves(rows).axes[0].get_ylim()
    assert low < -8 and high >= 0


@pytest.mark.parametrize("change", [0, -0.02, 0.02])
def test_the_legend_of_curves_hides_no_curve(drawn_curves, change):
    """A constant loss or one that rises from overfitting was below the legend at the upper right."""
    values = [0.5 + change * i for i in range(20)]
    rows = [{"epoch": i, "step": i, "val/loss": value, "val/accuracy": value} for i, value in enumerate(values, 1)]
    figure = drawn_curves(rows)
    figure.draw_without_rendering()
    for axes in figure.axes:
        box = axes.get_legend().get_window_extent()
        assert not any(box.count_contains(axes.transData.transform(line.get_xydata())) for line in axes.lines)


def test_epochs_above_999_are_whole_numbers(drawn_curves):
    rows = [{"epoch": i, "step": i, "val/loss": abs(i - 1234), "val/accuracy": 0.5} for i in range(1, 1300)]
    texts = [text.get_text() for text in drawn_curves(rows).findobj(Text)]
    assert "best validation 0 after epoch 1,234" in texts
    assert [epoch_text(each) for each in (3.0, 2 / 3, 20.5, 0.0)] == ["3", "0.67", "20.5", "0"]


def test_the_epoch_that_was_selected_is_named_if_another_has_a_better_metric(drawn_curves):
    rows = [{"epoch": i, "step": i, "val/loss": 1.0, "val/accuracy": rate} for i, rate in enumerate((0.8, 0.7, 0.81))]
    texts = [text.get_text() for text in drawn_curves(rows, 0).findobj(Text)]
    assert "best validation 81.00% after epoch 2; selected: epoch 0" in texts


def test_counts_of_a_confusion_matrix_have_contrast(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    counts = np.array([[56, 44, 0], [20, 80, 0], [5, 15, 80]])
    confusion_picture(tmp_path / "a.png", counts, ["a", "b", "c"])
    axes = figures[0].axes[0]
    colours = axes.images[0].get_array()
    for text in axes.texts[-np.count_nonzero(counts):]:
        column, row = text.get_position()
        assert confusion.contrast(np.array(to_rgb(text.get_color())), colours[row, column] / 255) > 3.5


@pytest.mark.parametrize("classes", [2, 30])
def test_the_size_of_counts_follows_the_size_of_cells(tmp_path, monkeypatch, classes):
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    confusion_picture(tmp_path / "a.png", np.diag([123456] * classes) + 1, [str(i) for i in range(classes)])
    axes = figures[0].axes[0]
    figures[0].draw_without_rendering()
    counts = axes.texts[-classes**2:]
    cell = axes.get_window_extent().width / classes
    assert {text.get_text() for text in counts} == {"1", "123,457"}
    assert max(text.get_window_extent().width for text in counts) < cell
    assert len({text.get_fontsize() for text in counts}) == 1 and (classes > 2 or counts[0].get_fontsize() > 8)


@pytest.mark.parametrize("letter", ["W", "i"])
def test_the_margin_of_class_names_is_as_wide_as_their_letters(tmp_path, monkeypatch, letter):
    """Wide capital letters were cut off at the left, and narrow ones left a third of the figure empty."""
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    confusion_picture(tmp_path / "a.png", np.eye(3)[::-1], [f"{letter * 20}{i}" for i in range(3)])
    figures[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in figures[0].findobj(Text) if text.get_text()]
    inch = figures[0].dpi
    assert 0 <= min(box.x0 for box in boxes) < 0.3 * inch and 0 <= min(box.y0 for box in boxes) < 0.3 * inch
    assert max(box.x1 for box in boxes) <= figures[0].bbox.x1


def test_the_numbers_of_many_classes_are_explained(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(confusion, "save_figure", lambda figure, path: figures.append(figure))
    confusion_picture(tmp_path / "a.png", np.eye(200), [f"name {i}" for i in range(200)])
    assert figures[0].axes[0].get_xlabel() == "predicted (number of the class, from 0)"
    confusion_picture(tmp_path / "b.png", np.eye(100), [f"name {i}" for i in range(100)])
    assert figures[1].axes[0].get_xlabel() == "predicted"


def evaluated() -> Evaluation:
    """Two texts, one of them wrong."""
    return Evaluation(["a", "b"], {"accuracy": 0.5}, count_confusions(np.array([0, 1]), np.array([1, 1]), 2),
                      np.arange(2), np.array([0, 1]), np.zeros(2), np.array([[1], [1]]), np.full((2, 1), 0.75))
