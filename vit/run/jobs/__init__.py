"""What a run can be about: each job prepares its parts from a config, and tests and shows what it trained."""

from vit.run.jobs.base import Job, prepare

__all__ = ["Job", "prepare"]
