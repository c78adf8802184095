"""Fault injection: what this project promises when something goes wrong, with a case for every way it was tried.

`python -m tests.faults` runs everything and prints a table; `test_quick.py` runs the quick cases with the other tests.
One module per promise, each with a `PROMISE`.
"""
