"""The report at the end of a run: the page of `vit report`, from the results of its test."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from vit import __version__
from vit.files.atomic import CheckpointError
from vit.messages import first_line, number_of
from vit.report.pages.model_report import write_report
from vit.report.sections.run_record import read_run
from vit.report.sections.subject import Subject
from vit.run.console import command
from vit.run.records.environment import environment
from vit.run.records.folder import RunFolder
from vit.training.fault_tolerance.interrupts import find_stop

if TYPE_CHECKING:  # vit report needs no Lightning, which jobs import
    from vit.run.jobs import Job, Tested

log = logging.getLogger("vit")

NO_TEST_SPLIT = ("measured on val, which also selected the best epoch: new data may give worse results; there is no "
                 "test split")
PAGE = "report.html"
ATTENTION = 2  # samples with maps
AUDIT_SECONDS = 0.5  # of decoding, if the run has not audited its data


def finish_with_report(job: "Job", folder: RunFolder, tested: "Tested", settings: dict,
                       own: Sequence[str] = ()) -> Path | None:
    """Write `report.html` and `report.json`; None without `report`, and if the task has no report.

    An error of the page itself is logged as a warning, and the run is finished without its report.

    Args:
        own: arguments of the printed command that writes the report again, see `own_configs`.

    Raises:
        CheckpointError: a file cannot be read or written, as on a full disk.
        Interrupted: a stop signal, also where a library raised its own error because of it.
    """
    if not job.config["report"] or tested.evaluation is None:
        return None
    try:
        page, _ = write_report(folder.path / PAGE, run_subject(job, folder, tested, settings, own))
    except Exception as error:  # noqa: BLE001  no error of a page may fail a trained model
        if (stop := find_stop(error)) is not None:
            raise stop from error
        again = f"the run is complete without it, and {command('report', folder.path, *own)} tries again"
        if isinstance(error, CheckpointError | OSError):
            raise CheckpointError(f"the report failed ({first_line(error, 200)}); {again}") from error
        log.warning("the report failed (%s: %s); %s", type(error).__name__, first_line(error, 200), again)
        log.debug("report", exc_info=error)
        return None
    log.info("report: %s", page)
    return page


def run_subject(job: "Job", folder: RunFolder, tested: "Tested", settings: dict, own: Sequence[str] = ()) -> Subject:
    """What the report is about; `own` as in `finish_with_report`."""
    batch_size = settings["batch_size"] or 64  # as in the test, where batches of training have a number of tokens
    facts = header_facts(command("report", folder.path, *own), settings["precision"], batch_size)
    facts |= {} if job.split == "test" else {"note": NO_TEST_SPLIT}
    facts |= {"leakage": leakage_note(job.config["leakage"])} if job.config.get("leakage") else {}
    audit = getattr(job, "audit", None)
    seconds = AUDIT_SECONDS if audit is None else job.config["data"]["audit_seconds"]
    return Subject(
        tested.predictor, tested.evaluation, job.evaluated(job.split), job.source, job.split,
        job.title, facts, read_run(folder.path), batch_size, seconds, ATTENTION, audit=audit,
        drawn=folder.path)


def leakage_note(leakage: Mapping[str, int]) -> str:
    """The numbers of samples that the initial weights or the teacher were trained on, by split."""
    counts = " and ".join(f"{number_of(count, 'sample')} of {split}" for split, count in leakage.items())
    return f"the initial weights or the teacher were trained on {counts}: results on new samples may be worse"


def header_facts(line: str, precision: str, batch_size: int) -> dict[str, str]:
    """The lines of the header about the report itself.

    Args:
        line: the command that writes the report.
    """
    recorded = environment()
    versions = {"vit": __version__, "python": recorded["python"], **recorded["versions"]}
    return {
        "date": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": line,
        "evaluated with": f"batches of {batch_size}, precision {precision}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "processor": recorded["processor"],
    }
