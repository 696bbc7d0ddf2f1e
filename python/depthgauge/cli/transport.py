"""``depthgauge transport``: the transport ablation as a table, JSON or a plot."""

from __future__ import annotations

import argparse
import sys

from depthgauge import plots
from depthgauge.cli.terminal import CAVEAT, add_shared_options, aligned, integer, three_digits, to_json
from depthgauge.studies.ablation import CHECKS, Transport, TransportAblation, transport_ablation

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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
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
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
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
        from depthgauge.studies.ablation_figure import transport_figure

        plots.save(transport_figure(ablation), arguments.plot)
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
