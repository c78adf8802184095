"""Train a model: `python train.py data=folder data.root=photos model=small`; `python train.py --help` lists the words.

compose → build → fit → test → save, as `vit/run/training_run.py` reads.
"""

import sys

from vit.run import main

if __name__ == "__main__":
    sys.exit(main())
