"""The table and the figure of compared models."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image
from rich.console import Console

from vit.report.figures import comparison
from vit.report.figures.comparison import ComparedModel, comparison_picture, comparison_table
from vit.report.logged_values import Curve


def contender(name: str, accuracy: float, seconds: float, curve: Curve | None = None) -> ComparedModel:
    return ComparedModel(name, "a $model$ [of] some kind", curve, "test", accuracy, 1000, 3_500_000, 812.5, seconds)


def rising(epochs: int) -> Curve:
    x = np.arange(1, epochs + 1.0)
    return Curve(x, 1 - 0.9 * np.exp(-x / 4))


def test_table_marks_the_better_numbers_and_does_not_change_names():
    console = Console(width=100, record=True, force_terminal=True, file=io.StringIO())
    console.print(comparison_table([contender("[b]one", 0.9123, 30), contender("two", 0.8, 20)], "both"))
    text = console.export_text(styles=True)
    assert "[b]one" in text and "[of]" in text
    assert "\x1b[1m91.23%" in text and "\x1b[1m20 s" in text
    assert "\x1b[1m80.00%" not in text


def test_many_ways_to_train_one_model_are_listed_below_one_another():
    console = Console(width=120, record=True, force_terminal=True, file=io.StringIO())
    ways = [replace(contender(f"way {i}", 0.5 + i / 100, 10.0 + i), trained=10 * i + 10, memory=i * 10**9 + 10**9)
            for i in range(4)]
    console.print(comparison_table(ways, "ways"))
    lines = console.export_text().splitlines()
    row = next(line.split() for line in lines if "way 2" in line)
    assert row == ["way", "2", "52.00%", "30", "812", "12", "s", "3,000", "MB"]
    head = "\n".join(lines[: lines.index(next(line for line in lines if "───" in line))]).split()
    assert {"trained", "parameters", "peak", "memory"} <= set(head) and not {"model", "MFLOPs"} & set(head)
    assert any("a $model$ [of] some kind, 1,000 parameters, 3.5 MFLOPs per sample" in line for line in lines)


def test_many_models_fit_a_narrow_terminal():
    """80 columns: no number is cut and no name broken; the models are described below the table."""
    console = Console(width=80, record=True, force_terminal=True, file=io.StringIO())
    models = [replace(contender(f"pooling {i}", 0.5, 400.0 + i), model=f"a long description {i}, " * 2,
                      parameters=672_643 + i, flops=39_100_000 + i * 10**6, memory=1_195_000_000) for i in range(4)]
    console.print(comparison_table(models, "pools"))
    text = console.export_text()
    for i in range(4):
        assert f"pooling {i}: a long description {i}, a long description {i}," in text
        line = next(line for line in text.splitlines() if line.strip().startswith(f"pooling {i} "))
        assert line.strip().endswith("1,195 MB")
    assert "samples/s" in text and "parameters" in text


@pytest.mark.parametrize("width", [55, 80])
def test_long_names_of_many_models_are_wrapped_and_leave_the_numbers_whole(width):
    """In 55 columns only the names were shown."""
    names = [f"positions=a_name_that_is_long_for_a_terminal_{i}" for i in range(4)]
    models = [replace(contender(name, 0.5 + i / 100, 332.0), parameters=204_819 + i, flops=6_650_000 * (i + 1),
                      memory=691_000_000) for i, name in enumerate(names)]
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    console.print(comparison_table(models, "positions", width))
    lines = console.export_text().splitlines()
    for i, name in enumerate(names):
        row = next(line for line in lines if f"{0.5 + i / 100:.2%}" in line)
        assert name.startswith(row.split()[0]) and "812" in row and "5 min 32 s" in row
        assert ("691 MB" in row) == (f"{204_819 + i:,}" in row) == (width == 80)
    caption = " ".join(" ".join(lines).split())
    assert "a wider terminal and comparison.csv also have MFLOPs per sample" in caption
    assert ("MFLOPs per sample, parameters, peak memory" in caption) == (width == 55)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("curves", [
    [rising(30), rising(12)], [rising(1), None], [None] * 8, [rising(3), Curve(np.arange(3.0), np.full(3, np.nan))]])
def test_picture_of_any_number_of_curves(tmp_path, curves):
    contenders = [contender(f"model {i}", 0.5 + i / 100, 10.0 * i + 1, curve) for i, curve in enumerate(curves)]
    path = comparison_picture(tmp_path / "new" / "comparison.png", contenders, "heading")
    with Image.open(path) as picture:
        assert min(picture.size) > 500


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The figure of these models."""
    def draw(models):
        figures = []
        monkeypatch.setattr(comparison, "save_figure", lambda figure, path: figures.append(figure))
        comparison_picture(tmp_path / "a.png", models, "heading")
        figures[0].draw_without_rendering()
        return figures[0]
    return draw


def test_long_names_leave_room_for_the_curves(drawn):
    models = [contender(f"model=small,recipe.optimizer.lr=0.00{i},recipe.epochs=300", 0.5, 1.0, rising(1500))
              for i in range(3)]
    figure = drawn(models)
    axes = figure.axes[0]
    note = next(text for text in axes.texts if text.get_text().startswith("best: "))
    assert axes.get_window_extent().width > 0.4 * figure.bbox.width
    assert note.get_window_extent().x1 <= axes.get_window_extent().x1


def test_curves_of_equal_colours_have_different_dashes(drawn):
    figure = drawn([contender(f"model {i}", 0.5, 1.0, rising(9)) for i in range(14)])
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 1]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 14


def test_epochs_of_a_short_comparison_are_whole_numbers(drawn):
    """One epoch had ticks at 0.15, 0.30, ...; the marker of a model that was best at its start was cut."""
    axes = drawn([contender("one", 0.5, 1.0, Curve(np.array([0.0, 1.0]), np.array([0.8, 0.7])))] * 2).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [0, 1] and low < 0


@pytest.mark.parametrize("count", [4, 24, 50])
def test_the_figure_of_many_models_has_one_row_per_model(drawn, count):
    """The figure of 50 models was 66 inches high, its legend covered curves, and the styles of curves were repeated."""
    figure = drawn([contender(f"recipe.optimizer.lr=0.00{i:03d}", i / 100, 10.0 + i, rising(9)) for i in range(count)])
    assert figure.get_figheight() < 7 + 0.25 * count
    curves, first, *others = figure.axes
    labels = [label.get_text() for label in first.get_yticklabels()]
    assert len(set(labels)) == count
    assert not any(label.get_text() for axes in others for label in axes.get_yticklabels())
    legend = next(each for part in figure.subfigs for each in part.legends)
    assert legend.get_window_extent().x0 >= curves.get_window_extent().x1
    assert legend.get_window_extent().y0 >= first.get_window_extent().y1
    named = {text.get_text() for text in legend.get_texts()}
    assert len(named) == (count if count <= 24 else 6) and any(name.endswith(f"{count - 1:03d}") for name in named)
    styles = [(line.get_color(), line.get_linestyle()) for line in curves.lines if line.get_label() in named]
    assert len(set(styles)) == len(styles) == len(named)


def test_names_and_values_of_many_models_do_not_overlap(drawn):
    names = [f"{i} {'W' * 40}" for i in range(9)]
    figure = drawn([replace(contender(name, 0.5, 7261.0 + i, rising(9)), parameters=10**9 + i, flops=10**13 + i,
                            per_second=99999.0 + i, memory=10**11 + i) for i, name in enumerate(names)])
    shown = [text for axes in figure.axes[1:] for text in axes.findobj(Text)
             if text.get_visible() and text.get_text().strip()]
    boxes = [text.get_window_extent() for text in shown]
    overlaps = [(one.get_text(), other.get_text()) for i, one in enumerate(shown) for j, other in enumerate(shown[:i])
                if boxes[i].overlaps(boxes[j])]
    assert not overlaps
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
