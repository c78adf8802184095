"""Labels to correct and samples to label next."""
