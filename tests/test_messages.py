"""Parts of error messages."""

import ast
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from hydra.core.override_parser.types import QuotedString

from vit.cli.terminal import print_error
from vit.messages import (
    agree,
    check_choice,
    did_you_mean,
    different_names,
    duration,
    error_message,
    first_line,
    first_of,
    import_problem,
    near_multiples,
    nearest_names,
    number_of,
    on_one_line,
    one_line,
    override_for_shell,
    visible,
    with_cause,
)
from vit.run.config.overrides import parse
from vit.run.console import print_line

ROOT = Path(__file__).parents[1]


def test_the_items_beyond_the_limit_are_counted():
    assert first_of(["a", "b", "c"], 3) == "a, b, c" and first_of([], 3) == ""
    assert first_of(["a", "b", "c"], 1, "; ") == "a and 2 more"


def test_the_first_line_omits_the_advice_below_it():
    assert first_line(RuntimeError("the file is cut off\nTry this\nand that")) == "the file is cut off"
    assert first_line(ValueError()) == "ValueError"
    assert first_line("") == ""
    assert first_line("x" * 400, limit=5) == "xxxxx"


def test_a_text_too_short_to_explain_an_error_has_its_type():
    assert one_line(KeyError("depth")) == "KeyError: 'depth'"
    assert one_line(ValueError("size 3 is not\n divisible  by 2")) == "size 3 is not divisible by 2"
    assert on_one_line(KeyError("depth")) == "'depth'" and on_one_line(ValueError("a\n b\nc"), 3) == "a b"


def test_a_value_that_is_no_choice_is_an_error_with_all_choices():
    check_choice("cache", False, (True, False, "auto"))
    with pytest.raises(ValueError, match="^cache='disc' is not one of true, false, auto$"):
        check_choice("cache", "disc", (True, False, "auto"))


@pytest.mark.parametrize(("value", "unit", "most", "expected"), [
    (100, 16, 1000, "96, 112"), (100, 16, 100, "96"), (10, 16, 1000, "16"), (24, 0, 1000, "24"),
])
def test_the_multiples_next_to_a_value_are_named(value, unit, most, expected):
    assert near_multiples(value, unit, most) == expected


@pytest.mark.parametrize(("error", "text"), [
    (FileNotFoundError(2, "No such file or directory", "a.png"), "a.png: No such file or directory"),
    (ValueError("lr is -1"), "lr is -1"),
    (ValueError(), "ValueError:  (add --debug for the traceback)"),
    (KeyError("depth"), "KeyError: 'depth' (add --debug for the traceback)"),
])
def test_unexpected_errors_name_the_option_for_details(error, text):
    assert error_message(error) == text


def test_near_names_come_first_and_others_are_omitted():
    assert nearest_names("adamv", ["sgd", "adamw", "adam"], n=2) == ["adam", "adamw"]
    assert nearest_names("xyz", ["sgd", "adam"]) == []
    assert nearest_names(128, [127, 5]) == ["127"]


def test_hints_join_names():
    assert did_you_mean(["adam", "adamw"]) == "; did you mean adam or adamw?"
    assert did_you_mean([]) == ""


def test_control_characters_are_escape_sequences():
    assert visible("a\x1b[31m\x9b\u202eb\udce9\n\tKäse 猫") == "a\\x1b[31m\\x9b\\u202eb\\udce9\n\tKäse 猫"


def test_commands_print_no_control_characters(capsys):
    assert print_error("data.name=\x1b[31m", 2) == 2
    print_line("\x1b[31m")
    printed = "".join(capsys.readouterr())
    assert printed.count(r"\x1b[31m") == 2 and "\x1b" not in printed


def test_duration_reads_like_a_clock():
    assert [duration(s) for s in (1.25, 42.4, 185, 7620)] == ["1.2 s", "42 s", "3 min 05 s", "2 h 07 min"]


def test_numbers_have_nouns_in_singular_or_plural():
    assert [number_of(n, "image") for n in (0, 1, 2, 1379)] == ["0 images", "1 image", "2 images", "1,379 images"]
    assert [number_of(2, noun) for noun in ("class", "patch", "box", "dash", "epoch")] == [
        "2 classes", "2 patches", "2 boxes", "2 dashes", "2 epochs"]
    assert number_of(2, "hypothesis", "hypotheses") == "2 hypotheses" and number_of(1, "index", "indices") == "1 index"
    assert [agree(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


def test_messages_count_with_one_function():
    """A number and a noun in the plural, such as `{len(rows)} images`, would read `1 images`."""
    counted = re.compile(r"^ (?:training |validation |test )?(images|texts|samples|rows|files|epochs|labels|pairs)\b")
    found = []
    for path in (ROOT / "vit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            found += [f"{path.relative_to(ROOT)}:{value.lineno}" for value, text in pairwise(parts)
                      if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Call | ast.Attribute)
                      and ast.unparse(value.value).startswith("len(") and isinstance(text, ast.Constant)
                      and counted.match(text.value)]
    assert found == []


@pytest.mark.parametrize("value", [
    "photos", "my photos", "/a b/c[1]", "a,b", "it's", "a\\", "x: y", "", " a", "a  b", ";", "|", "$x", "a=b", "café",
    "~", "1", "1e3", "yes", 1, 0.2, None, True, ["cat", "dog"], ["yes", "no"], ["no finding", "a,b", "it's", "1"],
    [0.2, 1.0], {"train": "all", "val": "b c"}, {"train": ["a", "1"]},
])
def test_overrides_of_messages_are_one_word_of_a_shell_and_parsed_as_they_are(value):
    (word,) = shlex.split(override_for_shell("data.classes", value))
    (parsed,) = parse([word])
    assert plain(parsed.value()) == value


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    return value.text if isinstance(value, QuotedString) else value


def test_overrides_of_messages_are_readable():
    assert override_for_shell("data.root", Path("photos")) == "data.root=photos"
    assert override_for_shell("data.classes", ["cat", "dog"]) == "'data.classes=[cat,dog]'"
    assert override_for_shell("data.classes", ["yes", "no"]) == '"data.classes=[\'yes\',\'no\']"'
    assert override_for_shell("data.label_separator", "|") == '"data.label_separator=\'|\'"'


def test_no_message_has_a_list_without_the_quotes_that_a_shell_needs():
    bare = re.compile(r"(?<!['\"\w.+])(?:data|recipe|model|task|callbacks|trainer)\.[\w.]+=(?:[\[{]|'\S+')")
    found = []
    for path in (ROOT / "vit").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        raised = [each for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Return) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("info", "warning")) for each in ast.walk(node)]
        found += [f"{path.relative_to(ROOT)}:{each.lineno}: {each.value}" for each in raised
                  if isinstance(each, ast.Constant) and isinstance(each.value, str) and bare.search(each.value)]
    assert found == []


def caused(*errors):
    """The last of the errors, each raised from the one before it."""
    for cause, error in pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_an_error_of_a_library_has_what_caused_it():
    network = OSError("[Errno -2] Name or service not known\nmore")
    assert with_cause(caused(network, ValueError("not reached"), RuntimeError("the data  set\nfailed"))) == (
        "the data set failed ([Errno -2] Name or service not known)")
    assert with_cause(caused(KeyError("label"), RuntimeError("it failed"))) == "it failed (KeyError: 'label')"
    assert with_cause(caused(ValueError("no rows"), RuntimeError("it failed: no rows"))) == "it failed: no rows"
    assert with_cause(ValueError()) == "ValueError"


def test_a_package_that_fails_is_not_called_missing():
    absent = ModuleNotFoundError("No module named 'captum'", name="captum")
    assert import_problem(absent, "captum") == "is not installed"
    other = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert import_problem(other, "datasets") == "cannot be imported (No module named 'pyarrow')"
    broken = ImportError("libGL.so.1: cannot open shared object file", name="datasets.packed")
    assert import_problem(broken, "datasets") == "cannot be imported (libGL.so.1: cannot open shared object file)"


def test_two_lists_of_names_differ_in_names_or_in_their_order():
    assert different_names(["a", "b", "d"], ["a", "b", "c"]) == "more: d; fewer: c"
    assert different_names(["a", "b"], ["a", "b", "c"]) == "more: none; fewer: c"
    assert different_names(["a", "c", "b"], ["a", "b", "c"]) == "another order, from number 2 on: c, b instead of b, c"
