"""No JSON file for users contains NaN or Infinity."""

import ast
import io
import json
from pathlib import Path

import pytest

from vit.cli.terminal import write_json
from vit.files.strict_json import json_text
from vit.report.tables import TABLES, JsonTable
from vit.run.multirun.sweep_results import SweptRun, write_results
from vit.run.records.folder import RunFolder

ROOT = Path(__file__).parents[2] / "vit"
WRITERS = {  # json.dumps elsewhere: between our own processes, or text that is not a file
    "files/strict_json.py", "data/formats/delimited.py", "training/fault_tolerance/watchdog.py", "files/atomic.py",
    "run/processes/rank.py", "weights/formats/timm/meta_model.py", "bundle/saving.py",
}
BAD = {"test/loss": float("nan"), "rows": [{"score": float("-inf")}, 1.5], "name": "NaN é"}
GOOD = {"test/loss": None, "rows": [{"score": None}, 1.5], "name": "NaN é"}


def strict(text):
    return json.loads(text, parse_constant=pytest.fail)


def test_nonfinite_values_become_null_and_are_logged(caplog):
    assert strict(json_text(BAD)) == GOOD and strict(json_text(BAD, indent=None, ascii_only=False)) == GOOD
    assert "test/loss is nan and is saved as null" in caplog.text and "rows.0.score is -inf" in caplog.text


def test_many_values_of_a_list_are_logged_in_one_line(tmp_path, caplog):
    """As the scores of all texts of an untrained model."""
    rows = [{"score": float("-inf"), "all": [1.0, float("nan")]} for _ in range(30)]
    assert strict(json_text({"rows": rows}))["rows"] == [{"score": None, "all": [1.0, None]}] * 30
    expected = ["30 values of rows.score are -inf and are saved as null",
                "30 values of rows.all are nan and are saved as null"]
    assert [record.getMessage() for record in caplog.records] == expected
    for form in ("json", "jsonl"):
        caplog.clear()
        with open(tmp_path / form, "wb") as stream:
            table = TABLES[form](stream, ["score"])
            for row in rows:
                table.write({"score": row["score"]})
            assert not caplog.records
            table.close()
        assert [record.getMessage() for record in caplog.records] == [
            "30 values of score are -inf and are saved as null"]


def test_files_of_runs_commands_and_sweeps(tmp_path):
    RunFolder(tmp_path).write("metrics.json", BAD)
    write_json(BAD, tmp_path / "evaluation.json")
    for name in ("metrics.json", "evaluation.json"):
        assert strict((tmp_path / name).read_text()) == GOOD
    write_results([SweptRun("a", {"lr": "1"}, 0, {"test/loss": float("nan")})], tmp_path / "sweep")
    (run,) = strict((tmp_path / "sweep" / "sweep.json").read_text())["runs"]
    assert run["metrics"] == {"test/loss": None}


def test_rows_of_predictions():
    stream = io.BytesIO()
    table = JsonTable(stream, ["file", "probability"])
    table.write({"file": "a.png", "probability": float("nan")})
    table.close()
    assert strict(stream.getvalue()) == [{"file": "a.png", "probability": None}]


def test_no_other_module_writes_json():
    found = {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps") and ast.unparse(node.value) == "json"
    }
    assert found == WRITERS
