"""Train a model: `python train.py data=folder data.root=photos model=small`; `--help` lists the options.

The steps of a run (build, fit, save, test) are in `vit/run/training_run.py`.
"""

import sys

from vit.run import main

if __name__ == "__main__":
    sys.exit(main())
