"""Errors of commands name the options that were typed, not the arguments of Python or the keys of a config."""

import pytest
import typer

from tests.inference.tiny_models import save_translator
from vit.bundle.files import SourceError
from vit.cli import app, main
from vit.cli.option_names import takes_path, with_option_names, with_path_option
from vit.data.errors import DataError, SplitError
from vit.exchange.options import OptionError
from vit.messages import ArgumentError

PREDICT = typer.main.get_command(app).commands["predict"]


@pytest.mark.parametrize(("text", "named"), [
    ("beam=0 must be above 0", "--beam 0 must be above 0"),
    ("tta=3: use tta=2, or leave it out", "--tta 3: use --tta 2, or leave it out"),
    ("precision='8 bit' is unknown; leave out fast=True", "--precision '8 bit' is unknown; leave out --fast"),
    ("n_best=4 is too much", "--top-k 4 is too much"),
    ("prefix='a b' has 'b', which the tokenizer lacks", "--prefix 'a b' has 'b', which the tokenizer lacks"),
    ("set= needs a calibrated model", "--set needs a calibrated model"),
    ("task.decode.beam=0 and data.batch_size=3", "task.decode.beam=0 and data.batch_size=3"),
    ("temperature is 0; the temperature divides", "--temperature is 0; the temperature divides"),
    ("beam is 0", "beam is 0"),  # not typed: a saved setting
    ("seed=1 was typed as an override", "seed=1 was typed as an override"),
])
def test_arguments_of_python_are_options(text, named):
    assert with_option_names(text, PREDICT, ["predict", "--temperature", "0", "seed=1"]) == named


@pytest.mark.parametrize(("arguments", "message"), [
    ("predict {translator} {lines} --temperature 0.5", "--temperature 0.5 is for sampling; add --sample, or leave"),
    ("predict {translator} {lines} --sample --beam 3", "--sample needs --beam 1, not --beam 3; --top-k 3 gives"),
    ("predict {translator} {lines} --sample --temperature=0", "--temperature is 0.0, but must be above 0"),
    ("predict {translator} {lines} --sampling-top-k 3", "--sampling-top-k 3 is for sampling; add --sample, or leave"),
    ("predict {translator} {lines} --sample --top-p 2", "--top-p is 2.0, but must lie in (0, 1]"),
    ("predict {translator} {lines} --min-len 7", "--min-len is 7, more than max_len 6; lower it or raise max_len"),
    ("predict {translator} {lines} --ctc 0.3", "--ctc 0.3 is for models of images, but {translator} reads texts; use"),
    ("predict {translator} {lines} --length-penalty nan", "--length-penalty is nan, but must be a finite number"),
    ("predict {translator} {lines} --fast --precision bf16-mixed", "leave out --fast or --precision bf16-mixed"),
    ("predict {translator} {lines} --ensemble {classifier}", "--ensemble takes models that do"),
    ("predict {translator} {lines} --explain -o a.csv", "--output a.csv must end with .png"),
    ("predict {classifier} {lines} --ensemble {classifier}", "--ensemble is for models that generate text"),
    ("predict {classifier} {lines} --ensemble {classifier}", "; combine classifiers of images with vit.bundle."),
    ("predict {classifier} {lines} --device nothing", "--device nothing cannot be used"),
    ("predict {classifier} {lines} --set 2", "--set 2 must be between 0 and 1"),
    ("predict {classifier} {lines} --abstain 0.1", "--abstain needs a calibrated model"),
    ("predict {classifier} {lines} -o a.tsv", "--output a.tsv: the table is not written as .tsv"),
    ("cross-validate --predictions a.xlsx", "--predictions a.xlsx: the table is not written as .xlsx; choose a name "
                                            "that ends with .csv, .parquet"),
    ("runs --csv a.Parquet", "--csv a.Parquet: the table is not written as .parquet; choose a name that ends with "
                             ".csv"),
    ("audit --labels {classifier} --csv a.json", "--csv a.json: the table is not written as .json"),
    ("attention {classifier} abc --layer 99 -o {lines}.svg", "--layer 99: the model has no such layer"),
    ("attention {classifier} abc -o a.csv", "--output a.csv must end with .png"),
    ("attention {classifier} --positions --similarity -o {lines}.svg", "--similarity shows the tokens of one input"),
    ("convert {classifier} {lines}.out --to bundle --num-classes -1", "--num-classes -1 must be a whole number"),
    ("runs {folder} --sort tset", "--sort tset: tset is not a column of the runs"),
    ("runs {folder} --filter tset>1", "--filter tset>1: tset is not a column of the runs"),
    ("predict {translator} {lines} --ensemble {missing}", "error: --ensemble {missing}: there is no such model"),
    ("predict {translator} {lines} --ensemble={folder}", "error: --ensemble {folder} holds no model"),
    ("audit data=digits --model {missing}", "error: --model {missing}: there is no such model"),
    ("audit data=digits --labels {folder}", "error: --labels {folder} holds no model"),
    ("next {classifier} {lines} --exclude {missing} -o {missing}", "error: {missing} does not exist"),  # either option
    ("next {classifier} {lines} --exclude {folder}", "error: --exclude {folder}: Is a directory"),
    ("bench step --rounds 1 --baseline {missing}", "error: --baseline {missing}: No such file or directory"),
    ("runs {folder} --csv {missing}/a.csv", "error: --csv {missing}/a.csv: {missing} is not a folder; create it"),
    ("explain {classifier} -o {lines}", "error: --output {lines} must end in .svg"),
])
def test_errors_name_what_was_typed(models, tmp_path, capsys, arguments, message):
    (tmp_path / "lines.txt").write_text("ab\n")
    (tmp_path / "empty").mkdir()
    names = {"translator": models / "translator", "classifier": models / "classifier", "folder": tmp_path / "empty",
             "lines": tmp_path / "lines.txt", "missing": tmp_path / "missing"}
    assert main([each.format(**names) for each in arguments.split()]) in (1, 2)
    assert message.format(**names) in capsys.readouterr().err


@pytest.mark.parametrize(("code", "arguments"), [
    (2, "predict {translator} {lines} --temperature 0.5"),
    (2, "predict {translator} {lines} --fast --precision bf16-mixed"),
    (2, "predict {classifier} {lines} --abstain 0.1"),
    (2, "attention {classifier} abc --layer 99 -o {lines}.svg"),
    (2, "explain {classifier} --tokens 1000"),
    (2, "convert {classifier} {lines}.out --to bundle --num-classes -1"),
    (2, "bench generation --shape large"),
    (2, "card {classifier} --licence A_B"),
    (2, "calibrate {classifier} data=digits --split all -o {lines}.out"),
    (1, "predict {classifier} {lines} --device nothing"),  # not on this machine
    (1, "predict {translator} {lines} --ensemble {classifier}"),
    (1, "predict {damaged} {lines} --sample"),  # its saved settings contradict each other
])
def test_an_invalid_option_is_invalid_usage_and_an_unusable_model_is_not(models, tmp_path, code, arguments):
    (tmp_path / "lines.txt").write_text("ab\n")
    save_translator(tmp_path / "damaged", extra={"generation": {"sample": True, "beam": 3}})
    names = {"translator": models / "translator", "classifier": models / "classifier",
             "lines": tmp_path / "lines.txt", "damaged": tmp_path / "damaged"}
    assert main([each.format(**names) for each in arguments.split()]) == code


def test_the_errors_of_options_are_those_that_callers_catch():
    assert issubclass(OptionError, SourceError) and issubclass(SplitError, DataError)
    assert all(issubclass(each, ArgumentError) and issubclass(each, ValueError) for each in (OptionError, SplitError))


@pytest.mark.parametrize(("text", "named"), [
    ("b: there is no such model", "--ensemble b: there is no such model"),
    ("b/config.json is damaged", "--ensemble ./b: b/config.json is damaged"),
    ("the models a and b have other classes", "--ensemble ./b: the models a and b have other classes"),
    ("No such file: 'b'", "--ensemble ./b: No such file: 'b'"),
    ("b.csv is not read, c/b neither", "b.csv is not read, c/b neither"),
    ("--ensemble b: holds no model", "--ensemble b: holds no model"),
    ("out.csv is full", "--output out.csv is full"),
    ("a: there is no such model", "a: there is no such model"),  # the argument
    ("in.csv is empty", "in.csv is empty"),  # input and option
])
def test_an_error_about_a_path_has_the_option_under_which_it_was_typed(text, named):
    arguments = ["predict", "a", "in.csv", "--ensemble", "./b", "--ensemble=in.csv", "-o", "out.csv"]
    assert with_path_option(text, PREDICT, arguments) == named


def test_every_option_that_takes_a_path_is_known_as_such():
    found = {(name, each.opts[0]) for name, command in typer.main.get_command(app).commands.items()
             for each in command.params if each.param_type_name == "option" and takes_path(each)}
    assert {("audit", "--labels"), ("predict", "--ensemble"), ("next", "--exclude"), ("bench", "--baseline")} <= found
    assert not any(option in ("--split", "--device", "--top-k", "--format") for _, option in found)


@pytest.mark.parametrize("command", ["cross-validate", "compare-finetuning"])
@pytest.mark.parametrize("option", ["--config-name", "-cn"])
def test_the_override_for_a_primary_config_is_named(command, option, capsys):
    assert main([command, option, "own"]) == 2
    error = capsys.readouterr().err
    assert "hydra.job.config_name=NAME" in error and "--config-dir" not in error
    assert main(["audit", option, "own"]) == 2 and "hydra.job" not in capsys.readouterr().err
