"""Jobs: for each task the parts of a run, and how its model is saved, tested and shown."""

from vit.run.jobs.base import Job, Tested
from vit.run.jobs.selection import build_job, check_job

__all__ = ["Job", "Tested", "build_job", "check_job"]
