"""The command line: ``depthgauge transport``, ``depthgauge decoder``, ``depthgauge rank`` and ``depthgauge info``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import depthgauge as dg
from depthgauge.cli import decoder, info, rank, transport
from depthgauge.cli.terminal import CAVEAT

DESCRIPTION = f"""\
depthgauge measures what a very deep residual network does, block by block, to the
signal that passes forward and to the gradient that passes backward.

commands:
  transport   Push six networks of the same width through many blocks; print which of
              them still carry a signal and a gradient at the end.
  decoder     Initialize a small transformer by depth; print how far state and gradient
              stray from their ends at every residual site.
  rank        Study what depth does to the rank of Jacobians, over many seeds, beside
              published figures.
  info        Print version, compiler, instruction sets and threads, for bug reports.

examples:
  depthgauge transport                       the published ablation, 96 blocks
  depthgauge transport --depth 192 --seed 1  other sizes
  depthgauge transport --plot rivers.png     the same as a plot, state and gradient
  depthgauge transport --json                everything as JSON, with sampled curves
  depthgauge decoder --fixtures              the published decoders
  depthgauge decoder --layers 24 --width 64 --heads 4 --ff 192
  depthgauge rank depth --quick              a first look at the law of depth
  depthgauge COMMAND --help                  all options of a command

{CAVEAT}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, without the program's name; the process's own by default.

    Returns
    -------
    int
        Exit status: 0 done, 1 a check failed, 2 an error of usage, of the environment or of a file, 130 interrupted,
        141 the reader of the output is gone.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] | None = arguments.command
    if command is None:
        parser.print_help(sys.stderr)
        return _fail("a command is missing; try: depthgauge transport")
    try:
        status = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return _fail("not enough memory for a run of this size")
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        return _fail(str(error))
    return status


def _fail(message: str) -> int:
    print(f"depthgauge: error: {message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="depthgauge",
        usage="depthgauge COMMAND [options]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"depthgauge {dg.__version__}")
    # The description lists the commands, at greater length than argparse does.
    commands = parser.add_subparsers(prog="depthgauge", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.set_defaults(command=None)
    transport.add(commands)
    decoder.add(commands)
    rank.add(commands)
    info.add(commands)
    return parser
