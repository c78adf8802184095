"""Fault injection: the promises of this project for failures, with a case for every injected fault.

`python -m tests.faults` runs everything and prints a table; `test_quick.py` runs the quick cases with the other tests.
Each module with a `PROMISE` tests one promise.
"""
