"""``python -m depthgauge`` is the command line."""

import sys

from depthgauge.cli import main

if __name__ == "__main__":
    sys.exit(main())
