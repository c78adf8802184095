"""Command line of the benchmarks that read files of `vit probe --save`."""

import argparse
import json


def measure_files(description, measure, seeds):
    """Print the rows of `measure(path, seeds)` for each file of the command line.

    Args:
        seeds: their number, by default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", nargs="+", help="files of vit probe --save")
    parser.add_argument("--seeds", type=int, default=seeds)
    options = parser.parse_args()
    for path in options.features:
        for row in measure(path, options.seeds):
            print(json.dumps(row), flush=True)
