"""`manifest.json`: the SHA-256 of the files a run relies on, so that a changed, older or foreign file is noticed."""

import json
import logging
from pathlib import Path

from vit.training.atomic import write_atomically

log = logging.getLogger("vit")

MANIFEST = "manifest.json"


class Manifest:
    """What the files of a folder must contain: name -> `{"sha256": ...}` and facts such as the optimizer step.

    `saving` describes a checkpoint that is about to be put in place: after a crash the file under the name is either
    the recorded one or this one. A folder without a manifest, made by an earlier version, has no entries.
    """

    def __init__(self, folder: str | Path, files: dict[str, dict] | None = None, saving: dict | None = None):
        self.folder, self.files, self.saving = Path(folder), files or {}, saving

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """An absent manifest has no entries, nor has a damaged one, which is logged."""
        path = Path(folder) / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): {"sha256": str(entry["sha256"]), **entry} for name, entry in content["files"].items()}
            return cls(folder, files, content["saving"])
        except FileNotFoundError:
            return cls(folder)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("%s is damaged: files are checked by their own checksums only", path)
            return cls(folder)

    def write(self) -> None:
        text = json.dumps({"files": self.files, "saving": self.saving}, indent=2) + "\n"
        write_atomically(self.folder / MANIFEST, lambda file: file.write(text.encode()))
