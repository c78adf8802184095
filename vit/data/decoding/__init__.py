"""Image files of every supported format → upright 8-bit Pillow images."""
