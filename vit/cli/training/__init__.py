"""Commands that train, measure speed, or list runs."""
