"""Calibration of classifiers: outputs on validation samples, fitted parameters, reliability."""
