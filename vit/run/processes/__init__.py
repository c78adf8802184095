"""Processes: the ranks of a distributed run, and the runs of sweeps and comparisons."""
