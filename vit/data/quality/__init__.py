"""Faults of a data set: the audit, near copies, and corrections of labels."""
