"""A search that continues in the folder of an earlier one, whose runs are numbered from 0.

The sweeper of the new search chooses other values, so the new runs get the numbers after those of the earlier ones.
"""

import pathlib


def earlier_records(folder: pathlib.Path, overrides: list[str]) -> list[dict]:
    """The records of the finished runs in the folder, as `write_record` writes them.

    Args:
        overrides: the overrides of this command; targets that they name are also trusted in the recorded configs.
    """
    from vit.run.records.folder import RunFolder
    from vit.run.records.reading import read_config, read_metrics

    finished = (path for path in numbered(folder) if RunFolder(path, main=False).finished)
    return [{"folder": str(path), "overrides": read_config(path, overrides)["overrides"], "exit_code": 0,
             "metrics": read_metrics(path)} for path in finished]


def next_number(folder: pathlib.Path) -> int:
    """The lowest number above those of the runs in the folder."""
    return max((int(path.name) + 1 for path in numbered(folder)), default=0)


def run_with(folder: pathlib.Path, overrides: list[str]) -> pathlib.Path | None:
    """The run in the folder that has these overrides, finished or stopped; None if there is none."""
    from vit.run import resume  # loads torch
    from vit.run.changes_on_resuming import of_same_run
    from vit.run.records.reading import read_config

    own = resume.recorded(overrides)
    return next((path for path in numbered(folder)
                 if of_same_run(read_config(path, overrides)["overrides"], own)), None)


def numbered(folder: pathlib.Path) -> list[pathlib.Path]:
    """The numbered folders that contain a run, in the order of their numbers."""
    from vit.run.records.folder import CONFIG

    return sorted((file.parent for file in folder.glob(f"*/{CONFIG}") if file.parent.name.isdecimal()),
                  key=lambda path: int(path.name))
