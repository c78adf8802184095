"""Fetches models of the Hugging Face hub by name and commit, uploads bundles, and explains the hub's errors."""

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from vit.bundle import CONFIG, WEIGHTS
from vit.bundle.files import INDEX, SourceError, read_json
from vit.bundle.record import text_with_checksum
from vit.exchange.private_paths import overrides_without_folders, without_folders
from vit.exchange.source_names import HUB
from vit.exchange.sources import CONFIG_FILES, PROCESSOR_FILE, PROCESSORS_FILE, README, WEIGHT_FILES
from vit.messages import on_one_line, with_cause

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger("vit")

NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
CONFIGS = (*CONFIG_FILES, PROCESSOR_FILE, PROCESSORS_FILE)


def fetch(name: str) -> Path:
    """`hub:OWNER/NAME[@REVISION]` -> a local folder with its config and weights, in the cache of huggingface_hub.

    Where REVISION is not a full commit hash, the log names the commit. A model that was fetched once is found in the
    cache without a network.

    Raises:
        SourceError: no such name, no network, or no file of weights; the message names what was tried.
    """
    repo, revision = parse_name(name)
    if revision and COMMIT.fullmatch(revision) and (found := find_cached(repo, revision)):
        return found
    with hub_errors_explained(f"{HUB}{repo}" + (f"@{revision}" if revision else ""), repo, revision) as unreachable:
        folder = download(repo, revision, select_files(name, list_files(repo, revision)))
    if unreachable:
        folder = find_cached(repo, revision)
        if folder is None:
            raise unreachable[0]
    if folder.name != revision:
        log.warning("%s is commit %s; to load the same again, use %s%s@%s", name, folder.name, HUB, repo, folder.name)
    return folder


def parse_name(name: str) -> tuple[str, str | None]:
    """`hub:OWNER/NAME@REVISION` -> (OWNER/NAME, REVISION or None).

    Raises:
        SourceError: it is not of that form.
    """
    found = NAME.fullmatch(name.removeprefix(HUB))
    if found is None:
        raise SourceError(f"this is not a name of the hub; write {HUB}OWNER/NAME or {HUB}OWNER/NAME@COMMIT", name)
    return found["repo"], found["revision"]


def list_files(repo: str, revision: str | None) -> list[str]:
    """The names of a model's files, with one request, where `list_repo_files` would retry for half a minute."""
    from huggingface_hub import HfApi

    return [file.rfilename for file in HfApi(library_name="vit").model_info(repo, revision=revision).siblings or []]


def select_files(name: str, files: list[str]) -> list[str]:
    """The files to fetch: one form of the weights, the safest there is, with all its pieces, and the configs.

    Raises:
        SourceError: there is no file of weights.
    """
    weights = next((file for file in WEIGHT_FILES if file in files), None)
    if weights is None:
        found = ", ".join(sorted(files)[:6]) or "nothing"
        raise SourceError(f"the model has no known file of weights: none of {', '.join(WEIGHT_FILES)}, but {found}",
                          name)
    stem, _, ending = weights.removesuffix(INDEX).rpartition(".")
    pieces = [file for file in files if weights.endswith(INDEX) and fnmatch(file, f"{stem}-*.{ending}")]
    return [weights, *pieces, *(file for file in CONFIGS if file in files)]


def download(repo: str, revision: str | None, files: list[str]) -> Path:
    """The folder with these files, named by its commit; files in the cache are not fetched again."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repo, revision=revision, allow_patterns=files, library_name="vit"))


def find_cached(repo: str, revision: str | None) -> Path | None:
    """The folder of an earlier `fetch`, if that was not interrupted."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with contextlib.suppress(LocalEntryNotFoundError, ValueError, OSError):
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=[*CONFIGS]))
        if is_complete(folder):
            return folder
    return None


def is_complete(folder: Path) -> bool:
    """Whether a folder has weights, with all the pieces that their index names."""
    weights = next((folder / file for file in WEIGHT_FILES if (folder / file).is_file()), None)
    if weights is None or not weights.name.endswith(INDEX):
        return weights is not None
    return all((folder / piece).is_file() for piece in set(read_json(weights).get("weight_map", {}).values()))


@contextlib.contextmanager
def hub_errors_explained(
    name: str, repo: str, revision: str | None = None, action: str = "fetched"
) -> Iterator[list[SourceError]]:
    """Raises the hub's errors as one sentence. If the hub cannot be reached, the error is added to the list instead,
    because the model may be in the cache.

    Args:
        action: what the block does, for the message: "fetched" or "pushed".

    Raises:
        SourceError: there is no such model or revision, or no permission.
    """
    from huggingface_hub import constants, errors

    unreachable: list[SourceError] = []
    try:
        yield unreachable
    except errors.GatedRepoError:
        raise SourceError(f"access is restricted; accept the owner's terms at {constants.ENDPOINT}/{repo}, then log in "
                          "with: hf auth login", name) from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{repo} has no revision {revision!r}; use a commit, branch or tag of "
                          f"{constants.ENDPOINT}/{repo}", name) from None
    except errors.RepositoryNotFoundError:
        raise SourceError(f"{constants.ENDPOINT} has no model {repo}, or it is private; check the name, or log in "
                          "with: hf auth login", name) from None
    except errors.HFValidationError as error:
        raise SourceError(on_one_line(error, 200), name) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        if status in (401, 403):
            raise SourceError(f"{constants.ENDPOINT} responded with {status}: no permission; log in with a token that "
                              "has it: hf auth login", name) from None
        message = (" ".join((getattr(error, "server_message", "") or "").split()))[:200]
        unreachable.append(unreached(name, f"{constants.ENDPOINT} responded with {status} {message}".strip(), action))
    except errors.OfflineModeIsEnabled:
        unreachable.append(unreached(name, "HF_HUB_OFFLINE=1 forbids requests", action))
    except SourceError:
        raise
    except (OSError, RuntimeError) as error:
        unreachable.append(unreached(name, no_connection(error), action))
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "requests", "httpcore")):
            raise
        unreachable.append(unreached(name, no_connection(error), action))


def no_connection(error: Exception) -> str:
    """Why the hub cannot be reached, as the HTTP library states it."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} cannot be reached ({with_cause(error, 100)})"


def unreached(name: str, reason: str, action: str) -> SourceError:
    """The error of a hub that cannot be reached, for the `action` that it prevents."""
    if action != "fetched":
        return SourceError(f"it was not {action}: {reason}; try again later, or with a network", name)
    return SourceError(f"it cannot be fetched and is not in the cache: {reason}; fetch it once with a network, or use "
                       "a file or folder of this machine", name)


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


def create_repository(api: "HfApi", repo: str, private: bool) -> None:
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
