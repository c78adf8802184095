"""The command `vit`, also as `python -m vit`."""

import sys


def main(argv: list[str] | None = None) -> int:
    """`vit.cli.main`; Ctrl-C has no traceback while it is imported either."""
    try:
        from vit.cli import main as run

        return run(argv)
    except KeyboardInterrupt:
        from vit.run.processes.separate_process import is_of_another_command

        if not is_of_another_command():
            print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
