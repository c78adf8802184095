"""`manifest.json`: the SHA-256 of the files that a run relies on, to detect changed, older and foreign files."""

import json
import logging
from pathlib import Path

from vit.files.atomic import write_atomically
from vit.files.untrusted import NotRegularFileError, file_sha256, parse_json, read_text

log = logging.getLogger("vit")

MANIFEST = "manifest.json"


class Manifest:
    """The recorded content of the files of a folder: name -> `{"sha256": ...}` and facts such as the optimizer step.

    `saving` describes a checkpoint that is about to be put in place: after a crash the file under the name is either
    the recorded one or this one. A folder without a manifest, made by an earlier version, has no entries.
    """

    def __init__(self, folder: str | Path, files: dict[str, dict] | None = None, saving: dict | None = None):
        self.folder, self.files, self.saving = Path(folder), files or {}, saving

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """The manifest of a folder; without entries if it is absent, or if it is damaged, which is logged."""
        path = Path(folder) / MANIFEST
        try:
            content = parse_json(read_text(path), float)
            files = {str(name): {"sha256": str(entry["sha256"]), **entry} for name, entry in content["files"].items()}
            saving = content["saving"]
            return cls(folder, files, saving and {"name": saving["name"], "sha256": saving["sha256"], **saving})
        except FileNotFoundError:
            return cls(folder)
        except (ValueError, KeyError, TypeError, AttributeError, NotRegularFileError):
            log.warning("%s is damaged: files are checked by their own checksums only", path)
            return cls(folder)

    def write(self) -> None:
        text = json.dumps({"files": self.files, "saving": self.saving}, indent=2) + "\n"
        write_atomically(self.folder / MANIFEST, text.encode())

    def announce(self, name: str, sha256: str) -> None:
        """Records the content that a file is about to have; until it is written, the present content is valid too."""
        path = self.folder / name
        self.files[name] = {"sha256": sha256, **({"before": file_sha256(path)} if path.is_file() else {})}
        self.write()

    def changed(self, name: str) -> bool:
        """Whether a recorded file exists and has other content than recorded."""
        entry, path = self.files.get(name), self.folder / name
        return bool(entry) and path.is_file() and file_sha256(path) not in (entry["sha256"], entry.get("before"))
