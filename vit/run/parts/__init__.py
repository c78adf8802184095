"""The steps that the jobs share: each makes one part of a run from a node of the config."""
