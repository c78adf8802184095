"""Safe reading of untrusted files, atomic writing, JSON for other programs, and the machine with its processes; imports
neither torch nor other packages of vit.
"""
