"""Commands that convert and publish models."""
