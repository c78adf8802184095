"""`vit card` and `vit push`: a saved model described for other people, and put where they find it."""

from pathlib import Path
from typing import Annotated

import typer

from vit.cli.terminal import Model, check_writable, stderr

Licence = Annotated[str | None, typer.Option(
    "--licence", "--license", help="As the hub writes it: apache-2.0, mit, cc-by-4.0, other, ...", show_default=False)]


def card(
    model: Model,
    licence: Licence = None,
    name: Annotated[str | None, typer.Option(help="OWNER/NAME on the hub, for the lines that load it.",
                                             show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", show_default=False,
                                                help="A file; by default README.md in the model's folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also a README.md that somebody wrote.")] = False,
) -> None:
    """Write a model card from the run: data, recipe, numbers, classes, how to load it."""
    check_writable(output)
    from vit.bundle import load_bundle
    from vit.exchange.card import MARK, README, model_card

    bundle = load_bundle(model)
    target = output or bundle.path / README
    if target.exists() and not overwrite and MARK not in target.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{target} was not written by this command; choose another --output, or say --overwrite")
    target.write_text(model_card(bundle, name, licence), encoding="utf-8")
    stderr().print(f"wrote {target}", markup=False, soft_wrap=True)
    if licence is None:
        stderr().print("it names no licence, so nobody may use the model; give one with --licence", style="yellow")


def push(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Where it goes on the Hugging Face hub.",
                                        show_default=False)],
    private: Annotated[bool, typer.Option("--private", help="Only its owner can read it.")] = False,
    licence: Licence = None,
    message: Annotated[str, typer.Option(help="Of the commit.", show_default=False)] = "",
) -> None:
    """Upload a model with its card: the README.md of its folder, or a new one where there is none."""
    from vit.bundle import load_bundle
    from vit.exchange.card import README, model_card
    from vit.exchange.hub import parsed
    from vit.exchange.pushing import push as upload

    if parsed(name)[1]:
        raise typer.BadParameter("a push makes a new commit; leave out what follows the @")
    bundle = load_bundle(model)
    own = bundle.path / README
    if own.is_file() and licence is not None:
        raise ValueError(f"{own} is there and says its licence itself; leave out --licence, or write it anew with: "
                         f"vit card {model} --name {name} --licence {licence}")
    text = own.read_text(encoding="utf-8") if own.is_file() else model_card(bundle, name, licence)
    address, commit = upload(bundle.path, name, text, private, message)
    stderr().print(f"pushed to {address}, commit {commit}", markup=False, highlight=False, soft_wrap=True)
    typer.echo(f"hub:{name}@{commit}")
