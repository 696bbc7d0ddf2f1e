"""Ratios against peers, measured in one process in turns, with a machine record.

Run ``python benchmarks/compare.py stack``, ``spread``, ``estimate``, ``graded``, ``jacobian``, ``grid`` or ``random``;
``--help`` after each lists its options.  A peer that is not installed is reported as absent.
"""

from __future__ import annotations

import argparse
import sys

from comparison import estimate, graded, grid, jacobian, normals, spread, stack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    stack.add_parser(commands)
    spread.add_parser(commands)
    estimate.add_parser(commands)
    graded.add_parser(commands)
    jacobian.add_parser(commands)
    grid.add_parser(commands)
    normals.add_parser(commands)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
