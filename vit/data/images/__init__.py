"""Image files, decoding and preprocessing; labelled and unlabelled image data sets."""
