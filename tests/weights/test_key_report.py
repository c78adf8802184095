"""The table of a key report, and the status of tensors by the number of tensors that they were made from."""

import torch

from vit.weights.key_report import MAX_ROWS, KeyReport, KeyRow
from vit.weights.loading import unused_row, with_sources
from vit.weights.renaming import RenamedState


def test_the_table_lists_what_is_not_loaded() -> None:
    rows = [
        KeyRow("a", "loaded", (2,), (2,)), KeyRow("b", "fused", (6,), (6,), sources=("q", "k", "v")),
        KeyRow("c", "implied", (2,), None, how="zero"), KeyRow("d", "resized", (3,), (2,)),
        KeyRow("e", "excluded", None, (4,)), *(KeyRow(f"u{i}", "unused", None, (i,)) for i in range(MAX_ROWS + 2)),
    ]
    report = KeyReport(rows, ["a note"])
    assert report.count("fused") == 1 and report.named("unused")[0] == "u0"
    assert report.table().splitlines() == [
        f"1 loaded, 1 resized, 0 new, {MAX_ROWS + 2} unused, 1 fused, 1 implied, 1 excluded",
        "  a note", "  implied c  (2,)  zero", "  resized d  (2,) -> (3,)",
        *(f"  unused  u{i}  ({i},)" for i in range(MAX_ROWS)), "  unused  ... and 2 more", "  excluded e  (4,)",
    ]


def test_the_number_of_further_tensors_is_separate_from_the_status() -> None:
    report = KeyReport([KeyRow(f"u{i}", "excluded", None, (i,)) for i in range(MAX_ROWS + 2)])
    assert report.table().splitlines()[-1] == "  excluded ... and 2 more"


def test_the_status_follows_from_the_sources() -> None:
    state = RenamedState({"q": torch.zeros(2), "k": torch.zeros(2), "pair": torch.zeros(2), "own": torch.zeros(2)})
    state.make("qk", ["q", "k"], lambda *parts: torch.cat(parts))
    state.split("pair", {"left": 1, "right": 1})
    state.add_zero_bias("bias", weight="own")

    def row(name: str, status: str = "loaded") -> KeyRow:
        return with_sources(KeyRow(name, status, (2,), (2,)), state)

    assert {name: row(name).status for name in ("qk", "left", "right", "own", "bias")} == {
        "qk": "fused", "left": "split", "right": "split", "own": "loaded", "bias": "implied"}
    assert row("qk").sources == row("qk", "resized").sources == ("q", "k") and row("qk", "resized").status == "resized"
    assert row("bias").source_shape is None and row("qk", "new").sources == () and row("other").status == "loaded"


def test_tensors_beside_the_model_are_excluded_by_the_beginning_of_their_name() -> None:
    excluded = {r"text\.": "the text tower"}
    assert unused_row("text.a", torch.zeros(3), excluded) == KeyRow(
        "text.a", "excluded", None, (3,), "the text tower", ("text.a",))
    assert unused_row("context.a", torch.zeros(3), excluded) == KeyRow(
        "context.a", "unused", None, (3,), sources=("context.a",))
