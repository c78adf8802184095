"""`vit compare-finetuning`: accuracy and cost of the methods of fine-tuning."""

from typing import Annotated

import typer

from vit.cli.shared_options import ConfigDir, Overrides, current_value, former_option


def compare_finetuning(
    overrides: Overrides = None,
    methods: Annotated[str | None, typer.Option(
        help="Methods, separated by commas; by default full,llrd,gradual,attention_only,lora,head.",
        show_default=False)] = None,
    ways: Annotated[str | None, former_option("--ways", "--methods")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Compare methods of fine-tuning on one data set: accuracy, trained parameters, time and memory in one table.

    Example: vit compare-finetuning data=folder data.root=photos init_from=MODEL.

    Each method is a separate run in a common folder; resume=FOLDER continues a stopped comparison.
    """
    from vit.run.console import log_to_console

    log_to_console(main=True)
    from vit.run.config.hydra_interface import with_config_dir
    from vit.run.multirun.compare_finetuning import METHODS
    from vit.run.multirun.compare_finetuning import compare_finetuning as compare

    methods = current_value(methods, ways, "--methods", "--ways")
    chosen = METHODS
    if methods is not None:
        chosen = list(dict.fromkeys(method.strip() for method in methods.split(",") if method.strip()))
        if len(chosen) < 2:
            raise typer.BadParameter(f"--methods {methods or repr(methods)}: must be two or more different ones of "
                                     f"{', '.join(METHODS)}, separated by commas")
    compare(with_config_dir(overrides or [], config_dir), chosen)
