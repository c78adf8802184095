"""What a run saves in its folder, and the list of all runs."""
