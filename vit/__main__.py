"""The command `vit`, also as `python -m vit`."""

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """`vit.cli.main`; Ctrl-C has no traceback while it is imported either."""
    try:
        from vit.cli import main as run

        return run(argv)
    except KeyboardInterrupt:
        if "VIT_PARENT" not in os.environ:  # a comparison or sweep reports it itself, see vit.run.processes
            print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
