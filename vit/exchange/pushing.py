"""A bundle as a model of the Hugging Face hub: three files in one commit."""

import json
from pathlib import Path

from vit.bundle import CONFIG, WEIGHTS
from vit.bundle.files import SourceError
from vit.bundle.record import text_with_checksum
from vit.exchange.card import README
from vit.exchange.hub import explained
from vit.exchange.places import placeless, without_places


def push(folder: Path, repo: str, card: str, private: bool = False, message: str = "") -> tuple[str, str]:
    """Upload config, weights and card of a bundle; what else lies in the folder stays. -> (address, commit)

    Raises:
        SourceError: no permission, no network, or the model is public there and `private` was asked for.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    api = HfApi(library_name="vit")
    files = {CONFIG: published(folder / CONFIG), WEIGHTS: folder / WEIGHTS, README: card.encode()}
    with explained(repo, repo, doing="pushed") as unreachable:
        create(api, repo, private)
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        commit = api.create_commit(repo, operations, commit_message=message or "Model, with its card")
    if unreachable:
        raise SourceError(unreachable[0])
    return f"{constants.ENDPOINT}/{repo}", commit.oid


def create(api, repo: str, private: bool) -> None:
    """The repository, unless it is there; a public one is never taken for a private one."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(repo, private=private)
    except HfHubHTTPError as error:
        if getattr(error.response, "status_code", None) != 409:
            raise
        if private and not api.model_info(repo).private:
            raise SourceError(f"{repo} is there already, and everybody can read it; choose another name, make it "
                              "private in its settings, or leave --private out") from None


def published(config: Path) -> bytes:
    """config.json without the places of this machine in what the run noted down."""
    values = json.loads(config.read_text(encoding="utf-8"))
    extra = values["vit"]["extra"]
    words = {"data": without_places(extra["data"])} if "data" in extra else {}
    values["vit"]["extra"] = placeless(extra) | words
    return text_with_checksum(values).encode()
