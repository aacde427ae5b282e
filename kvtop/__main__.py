"""``python -m kvtop``."""

import sys

from kvtop.cli.main import main

# The guard matters: a spawned child imports this module again under another name.
if __name__ == "__main__":
    sys.exit(main())
