"""The command line: ``depthgauge transport``, ``depthgauge decoder``, ``depthgauge rank`` and ``depthgauge info``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import depthgauge as dg
from depthgauge import decoder_command, plots, rank_command
from depthgauge._terminal import add_shared_options, aligned, integer, three_digits, to_json
from depthgauge.studies.ablation import CHECKS, Transport, TransportAblation, transport_ablation

CAVEAT = """\
A measurement at initialization is a commissioning check: it shows whether a signal
and a gradient get through the stack before training starts. It does not show that
the network trains, or how accurate it becomes."""

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

DEPTH_OF_CHECKS = """\
The checks describe the published depth, 96 blocks; at other depths, shallow ones above all,
some do not hold, by design, and the exit status is 1."""

TRANSPORT_DESCRIPTION = """\
The transport ablation: one Gaussian batch goes forward and one Gaussian gradient
goes backward through six stacks that differ in activation, residual branch and norm
alone. A block is h + scale * branch(u), or branch(u) where the residual scale is none;
branch(u) = activation(u @ up) @ down, and u is h, or h over its RMS with pre-RMSNorm.

columns:
  end RMS         RMS of the last state; the input has about 1
  drift           largest over smallest RMS of all states
  gradient ratio  RMS of the gradient at the input over that at the output

checks, which decide the exit status (0 all hold, 1 one fails, 2 a usage error):
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, without the program's name; the process's own by default.

    Returns
    -------
    int
        Exit status: 0 done, 1 a check failed, 2 an error of usage or of the surroundings.
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
    # The description lists the commands, with more room than argparse gives them.
    commands = parser.add_subparsers(prog="depthgauge", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.set_defaults(command=None)
    _add_transport(commands)
    decoder_command.add(commands)
    rank_command.add(commands)
    _add_info(commands)
    return parser


def _add_transport(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    checks = "\n".join(f"  {name}\n      {check.configuration}: {check.statement}" for name, check in CHECKS.items())
    parser = commands.add_parser(
        "transport",
        description=f"{TRANSPORT_DESCRIPTION}{checks}\n\n{DEPTH_OF_CHECKS}",
        epilog=CAVEAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = integer(1)
    parser.add_argument("--depth", type=count, default=96, metavar="N", help="blocks of the deep stacks (default 96)")
    parser.add_argument("--width", type=count, default=64, metavar="N", help="features of a state (default 64)")
    parser.add_argument("--batch", type=count, default=128, metavar="N", help="examples (default 128)")
    parser.add_argument("--seed", type=integer(0), default=7, metavar="N", help="seed of all draws (default 7)")
    add_shared_options(parser)
    parser.set_defaults(command=_transport)


def _add_info(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "info", description="Print version, compiler, flags, instruction sets and threads, for bug reports."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=_info)


def _transport(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        plots.require_matplotlib()
    ablation = transport_ablation(
        arguments.depth,
        arguments.width,
        arguments.batch,
        arguments.seed,
        backend=arguments.backend,
        threads=arguments.threads,
    )
    failed = ablation.failed_checks()
    if arguments.json:
        print(to_json(ablation.to_dict()))
    else:
        print(transport_table(ablation))
    if arguments.plot is not None:
        plots.save_transport(ablation, arguments.plot)
        print(f"depthgauge: wrote {arguments.plot}", file=sys.stderr)
    return 1 if failed else 0


def transport_table(ablation: TransportAblation) -> str:
    """Return the ablation as a table to three significant digits, followed by the checks."""
    rows = [
        ["configuration", "depth", "activation", "residual scale", "pre-RMSNorm", "end RMS", "drift", "gradient ratio"]
    ]
    rows += [_row(transport) for transport in ablation.transports]
    lines = [
        "Transport at initialization: a commissioning check, not a proof that a network trains.",
        f"Width {ablation.width}, batch {ablation.batch}, seed {ablation.seed}, float64",
        "",
        *aligned(rows, left=(0, 2, 3, 4)),
        "",
    ]
    failed = ablation.failed_checks()
    lines += [f"{name} does not hold: {CHECKS[name].configuration}, {CHECKS[name].statement}" for name in failed]
    lines.append("checks: " + ("FAIL " + ", ".join(failed) if failed else "PASS"))
    return "\n".join(lines)


def _row(transport: Transport) -> list[str]:
    configuration = transport.configuration
    return [
        configuration.name,
        str(transport.depth),
        configuration.activation,
        configuration.residual,
        "yes" if configuration.pre_norm else "no",
        three_digits(transport.end_rms),
        three_digits(transport.drift),
        three_digits(transport.gradient_ratio),
    ]


def _info(arguments: argparse.Namespace) -> int:
    config = dg.build_config()
    if arguments.json:
        print(to_json(config))
    else:
        entries = list(_flattened(config))
        width = max(len(name) for name, _ in entries)
        print("\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in entries))
    return 0


def _flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            yield prefix + name, ", ".join(map(str, value))
        else:
            yield prefix + name, str(value)
