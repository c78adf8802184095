"""Data sets as their authors publish them, with lists that are no tables of images and labels."""
