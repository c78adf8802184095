"""`vit cross-validate`: folds, their mean and deviation, out-of-fold predictions and an ensemble."""

from pathlib import Path
from typing import Annotated

import typer

from vit.cli.file_checks import check_not_an_input, check_table, check_writable
from vit.cli.shared_options import ConfigDir, Overrides


def cross_validate(
    overrides: Overrides = None,
    predictions: Annotated[Path | None, typer.Option(
        help="File for the out-of-fold predictions: Parquet if its name ends with .parquet, otherwise CSV; by default "
             "out_of_fold.csv in the common folder.",
        show_default=False)] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train a model per fold and print mean and deviation; save out-of-fold predictions and an ensemble.

    Example: vit cross-validate data=folder data.root=photos folds=5 seeds=0,1,2.

    Each fold is a separate run in a common folder; resume=FOLDER continues a stopped cross-validation.
    """
    check_writable(predictions)
    check_not_an_input(predictions, overrides or [], "--predictions")
    check_table("--predictions", predictions, (".csv", ".parquet"))
    from vit.run.console import log_to_console

    log_to_console(main=True)
    from vit.run.config.hydra_interface import with_config_dir
    from vit.run.multirun.cross_validation import cross_validate as run_folds

    run_folds(with_config_dir(overrides or [], config_dir), predictions)
