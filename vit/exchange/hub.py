"""Models of the Hugging Face hub, by name and commit, and this program's way to put one there."""

import contextlib
import logging
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from vit.bundle.files import INDEX, SourceError, read_json
from vit.exchange.read import CONFIGS, FILES, HUB, PIXELS

log = logging.getLogger("vit")

NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


def fetch(name: str) -> Path:
    """`hub:OWNER/NAME[@REVISION]` -> a local folder with its config and weights, in the cache of huggingface_hub.

    Without a whole commit as REVISION, the log says which commit was taken. What was fetched once is found again
    without a network.

    Raises:
        SourceError: no such name, no network, or nothing that holds weights; says what was tried.
    """
    repo, revision = parsed(name)
    if revision and COMMIT.fullmatch(revision) and (found := cached(repo, revision)):
        return found
    with explained(f"{HUB}{repo}" + (f"@{revision}" if revision else ""), repo, revision) as unreachable:
        folder = downloaded(repo, revision, wanted(name, listed(repo, revision)))
    if unreachable:
        folder = cached(repo, revision)
        if folder is None:
            raise SourceError(unreachable[0])
    if folder.name != revision:
        log.warning("%s is commit %s; to get the same again: %s%s@%s", name, folder.name, HUB, repo, folder.name)
    return folder


def parsed(name: str) -> tuple[str, str | None]:
    """`hub:OWNER/NAME@REVISION` -> (OWNER/NAME, REVISION or None)."""
    found = NAME.fullmatch(name.removeprefix(HUB))
    if found is None:
        raise SourceError(f"{name} is no name of the hub; write {HUB}OWNER/NAME or {HUB}OWNER/NAME@COMMIT")
    return found["repo"], found["revision"]


def listed(repo: str, revision: str | None) -> list[str]:
    """The names of its files; asked once, where `list_repo_files` would try for half a minute without a network."""
    from huggingface_hub import HfApi

    return [file.rfilename for file in HfApi(library_name="vit").model_info(repo, revision=revision).siblings or []]


def wanted(name: str, files: list[str]) -> list[str]:
    """One form of the weights, the safest first, with all of its pieces, and what describes them."""
    weights = next((file for file in FILES if file in files), None)
    if weights is None:
        there = ", ".join(sorted(files)[:6]) or "nothing"
        raise SourceError(f"{name} holds no weights that are known: none of {', '.join(FILES)}, but {there}")
    stem, _, ending = weights.removesuffix(INDEX).rpartition(".")
    pieces = [file for file in files if weights.endswith(INDEX) and fnmatch(file, f"{stem}-*.{ending}")]
    return [weights, *pieces, *(file for file in (*CONFIGS, PIXELS) if file in files)]


def downloaded(repo: str, revision: str | None, files: list[str]) -> Path:
    """The folder with these files, named by its commit, fetched as far as they are not in the cache."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repo, revision=revision, allow_patterns=files, library_name="vit"))


def cached(repo: str, revision: str | None) -> Path | None:
    """The folder that an earlier `fetch` left, if that was not broken off."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with contextlib.suppress(LocalEntryNotFoundError, ValueError, OSError):
        described = [*CONFIGS, PIXELS]
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=described))
        if whole(folder):
            return folder
    return None


def whole(folder: Path) -> bool:
    """Whether weights are there, with all the pieces that their index names."""
    weights = next((folder / file for file in FILES if (folder / file).is_file()), None)
    if weights is None or not weights.name.endswith(INDEX):
        return weights is not None
    return all((folder / piece).is_file() for piece in set(read_json(weights).get("weight_map", {}).values()))


@contextlib.contextmanager
def explained(name: str, repo: str, revision: str | None = None, doing: str = "fetched") -> Iterator[list[str]]:
    """The hub's errors in one sentence. Where it cannot be reached, that is put into the list: a cache may help.

    Raises:
        SourceError: there is no such model, no such revision, no permission.
    """
    from huggingface_hub import constants, errors

    unreachable: list[str] = []
    try:
        yield unreachable
    except errors.GatedRepoError:
        raise SourceError(f"{name}: its owner gives it only to people who asked; accept the terms at "
                          f"{constants.ENDPOINT}/{repo}, then log in with: hf auth login") from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{name}: {repo} has no revision {revision!r}; take a commit, branch or tag of "
                          f"{constants.ENDPOINT}/{repo}") from None
    except errors.RepositoryNotFoundError:
        raise SourceError(f"{name}: {constants.ENDPOINT} has no model {repo}, or it is private; check the name, or log "
                          "in with: hf auth login") from None
    except errors.HFValidationError as error:
        raise SourceError(f"{name}: {' '.join(str(error).split())[:200]}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        if status in (401, 403):
            raise SourceError(f"{name}: {constants.ENDPOINT} answered {status}, so there is no permission; log in with "
                              "a token that has it: hf auth login") from None
        said = (" ".join((getattr(error, "server_message", "") or "").split()))[:200]
        unreachable.append(unreached(name, f"{constants.ENDPOINT} answered {status} {said}".strip(), doing))
    except errors.OfflineModeIsEnabled:
        unreachable.append(unreached(name, "HF_HUB_OFFLINE=1 forbids to ask", doing))
    except SourceError:
        raise
    except (OSError, RuntimeError) as error:
        unreachable.append(unreached(name, f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})", doing))
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "requests", "httpcore")):
            raise
        unreachable.append(unreached(name, f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})", doing))


def unreached(name: str, reason: str, doing: str) -> str:
    if doing != "fetched":
        return f"{name} was not {doing}: {reason}; try again later, or with a network"
    return (f"{name} cannot be fetched and is not in the cache: {reason}; fetch it once with a network, or give a file "
            "or folder of this machine")
