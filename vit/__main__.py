import sys

from vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
