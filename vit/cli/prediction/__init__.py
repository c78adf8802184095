"""Commands that predict with a saved model or show its inside."""
