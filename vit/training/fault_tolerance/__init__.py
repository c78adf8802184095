"""What stops a run: numbers that are not finite, signals, processes that hang."""
