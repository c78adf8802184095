"""What a run shows and decides by: progress bar, peak memory, direction of a metric, patience."""
