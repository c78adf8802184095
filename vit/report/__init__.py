"""Pictures and tables for people: what a finished run, an evaluation and a prediction look like."""
