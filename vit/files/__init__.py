"""Safe reading of untrusted files, and JSON for other programs; imports neither torch nor other packages of vit."""
