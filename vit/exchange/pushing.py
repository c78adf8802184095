"""Uploads a bundle to the Hugging Face hub: three files in one commit."""

import json
from pathlib import Path

from vit.bundle import CONFIG, WEIGHTS
from vit.bundle.files import SourceError
from vit.bundle.record import text_with_checksum
from vit.exchange.card import README
from vit.exchange.hub import hub_errors_explained
from vit.exchange.private_paths import overrides_without_folders, without_folders


def push(folder: Path, repo: str, card: str, private: bool = False, message: str = "") -> tuple[str, str]:
    """Upload config, weights and card of a bundle, and no other files of its folder -> (address, commit).

    Raises:
        SourceError: no permission, no network, or the model is public there although `private` is requested.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    api = HfApi(library_name="vit")
    files = {CONFIG: public_config(folder / CONFIG), WEIGHTS: folder / WEIGHTS, README: card.encode()}
    with hub_errors_explained(repo, repo, action="pushed") as unreachable:
        create_repository(api, repo, private)
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        commit = api.create_commit(repo, operations, commit_message=message or "Model, with its card")
    if unreachable:
        raise unreachable[0]
    return f"{constants.ENDPOINT}/{repo}", commit.oid


def create_repository(api, repo: str, private: bool) -> None:
    """Create the repository unless it exists.

    Raises:
        SourceError: it exists and is public, although `private` is requested.
    """
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(repo, private=private)
    except HfHubHTTPError as error:
        if getattr(error.response, "status_code", None) != 409:
            raise
        if private and not api.model_info(repo).private:
            raise SourceError("it exists and is public; choose another name, make it private in its settings, or leave "
                              "out --private", repo) from None


def public_config(config: Path) -> bytes:
    """config.json without the folders of this machine in what the run recorded."""
    values = json.loads(config.read_text(encoding="utf-8"))
    extra = values["vit"]["extra"]
    overrides = {"data": overrides_without_folders(extra["data"])} if "data" in extra else {}
    values["vit"]["extra"] = without_folders(extra) | overrides
    return text_with_checksum(values).encode()
