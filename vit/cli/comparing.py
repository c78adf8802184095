"""`vit compare-finetuning`: what each way of fine-tuning reaches and costs."""

from typing import Annotated

import typer

from vit.cli.terminal import ConfigDir, Words


def compare_finetuning(
    words: Words = None,
    ways: Annotated[str | None, typer.Option(
        help="Those to compare, with commas: full,llrd,gradual,attention_only,lora,head by default.")] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Fine-tune a model in every way on one data set: accuracy, trained parameters, time and memory in one table.

    vit compare-finetuning data=folder data.root=photos init_from=MODEL; each way is a run of its own in one folder,
    and resume=FOLDER goes on with what was stopped.
    """
    from vit.run.console import log_to_console

    log_to_console(main=True)
    from vit.run.compare_finetuning import WAYS
    from vit.run.compare_finetuning import compare_finetuning as compare
    from vit.run.config.composing import with_config_dir

    compare(with_config_dir(words or [], config_dir), [way.strip() for way in ways.split(",")] if ways else WAYS)
