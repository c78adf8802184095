"""Images: finding, decoding and preprocessing them; labelled and unlabelled data sets of images."""
