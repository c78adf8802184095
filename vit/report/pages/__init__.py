"""HTML pages in one file each."""
