"""Reading files that somebody else made and writing files that others read: no torch, no other package of vit."""
