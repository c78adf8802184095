"""Train a model: `python train.py data=folder data.root=photos model=small`; `--help` lists the options.

The steps of a run (build, fit, save, test) are in `vit/run/training_run.py`.
"""

import sys

if __name__ == "__main__":
    try:
        from vit.run import main

        sys.exit(main())
    except KeyboardInterrupt:  # while the modules are imported; `main` handles it otherwise
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
