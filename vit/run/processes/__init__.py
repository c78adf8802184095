"""Processes of a run: the ranks of a distributed run, and runs that need a process of their own."""
