"""`vit models`: the names of the models that can be created."""

from typing import Annotated

import typer


def models(pattern: Annotated[str, typer.Argument(help="Names with * and ?, such as 'vit_small*'.")] = "*") -> None:
    """List the names of the models that can be created."""
    from vit.models import list_models

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model name matches {pattern!r}; vit models lists all {len(list_models())}, and timm:NAME "
                         "is a network of timm")
    typer.echo("\n".join(names))
