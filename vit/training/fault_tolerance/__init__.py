"""What ends a run before it does harm: numbers that are not finite, signals, processes that hang."""
