"""The command ``depthgauge decoder``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from depthgauge import plots
from depthgauge.cli.terminal import add_shared_options, aligned, integer, to_json
from depthgauge.studies.decoder import (
    BUDGET,
    RULES,
    SEED,
    WITHIN,
    Budget,
    Commission,
    DecoderConfig,
    Observation,
    commission,
    fixtures_to_dict,
    run_fixtures,
    symbolic_plan,
)
from depthgauge.studies.decoder.fixtures import LAPTOP

DESCRIPTION = """\
The decoder commissioning: a decoder-only transformer in float64 (RMSNorm, causal attention
with rotary positions, SwiGLU, tied head) is initialized by SplitMix64 and Xavier uniform, and
the two output projections of each of its L complete blocks are multiplied once by 1/sqrt(L).
One sequence goes forward, the mean cross entropy comes back, and every residual site is
observed: the input, then the state after each attention and each feed-forward addition.

columns:
  activation RMS    RMS of the state at a site
  activation ratio  that over the RMS of the input: what the residual stream has grown to
  adjoint RMS       RMS of the derivative of the mean loss with respect to the state,
                    all later paths summed
  adjoint ratio     that over the one at the last site: how the gradient changes on its way
                    back through the blocks
  status            a ratio is below, within or above the band [0.01, 100], ends included

The control is the same base, unscaled. Other rules on the same base, with --compare:
"""

LIMITS = """\
What the ratios do not establish: that training converges, how large a gradient is in itself
(both curves are relative, each to one of its ends), or what another seed, sequence or size
gives. Like any measurement at initialization this is a commissioning check; it does not show
how accurate the network becomes.

The band is a convention, and the exit status does not depend on it: 0 done, 2 an error of
usage, or a decoder that cannot be measured."""

# The published decoder of eight blocks: by option, the field of DecoderConfig that it sets, and its value.
SIZES: dict[str, tuple[str, Any]] = {
    "layers": ("layers", 8),
    "width": ("width", 4),
    "heads": ("heads", 1),
    "kv_heads": ("kv_heads", None),
    "ff": ("ff_width", 4),
    "vocabulary": ("vocabulary", 266),
    "positions": ("max_positions", 4),
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser's commands."""
    rules = "\n".join(f"  {rule.id:<8}{rule.statement}" for rule in RULES.values())
    parser = commands.add_parser(
        "decoder",
        description=f"{DESCRIPTION}{rules}",
        epilog=LIMITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = integer(1)
    parser.add_argument("--fixtures", action="store_true", help="run the four published decoders instead of one")
    parser.add_argument("--layers", type=count, metavar="N", help="complete blocks (default 8)")
    parser.add_argument("--width", type=count, metavar="N", help="features of a state (default 4)")
    parser.add_argument("--heads", type=count, metavar="N", help="query heads (default 1)")
    parser.add_argument("--kv-heads", type=count, metavar="N", help="heads of keys and values (default as --heads)")
    parser.add_argument("--ff", type=count, metavar="N", help="hidden units of the feed-forward branch (default 4)")
    parser.add_argument("--vocabulary", type=count, metavar="N", help="tokens (default 266)")
    parser.add_argument(
        "--positions",
        type=count,
        metavar="N",
        help="longest sequence (default that of --ids; without them, 4, all used)",
    )
    parser.add_argument("--seed", type=integer(0), metavar="N", help=f"seed of SplitMix64 (default {SEED})")
    parser.add_argument(
        "--ids",
        type=_ids,
        metavar="N,N,...",
        help="tokens of the sequence, the target of each being the next (default 0,99,100,101,1, or as many as "
        "--positions asks for: 0,99,100,101,102,...,1)",
    )
    parser.add_argument(
        "--compare", choices=tuple(RULES), nargs="+", default=[], metavar="RULE", help="also observe other rules"
    )
    parser.add_argument(
        "--budget", type=count, metavar="N", help=f"most parameters to allow (default {BUDGET.parameters:,})"
    )
    add_shared_options(parser)
    parser.set_defaults(command=_decoder)


def _ids(text: str) -> list[int]:
    parse = integer(0)
    tokens = [parse(token) for token in text.split(",")]
    if len(tokens) < 2:
        raise argparse.ArgumentTypeError(f"takes at least 2 tokens, the last being a target only, got {text!r}")
    return tokens


def _decoder(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        plots.require_matplotlib()
    if arguments.fixtures:
        _fixtures(arguments)
    else:
        _one(arguments)
    return 0


def _fixtures(arguments: argparse.Namespace) -> None:
    for option in (*SIZES, "seed", "ids", "compare", "budget"):
        if getattr(arguments, option) not in (None, []):
            raise ValueError(f"--{option.replace('_', '-')} does not go with --fixtures, whose decoders are given")
    runs = list(run_fixtures(backend=arguments.backend, threads=arguments.threads))
    if arguments.json:
        print(to_json(fixtures_to_dict(runs)))
    else:
        tables = [decoder_table(fixture.title, run) for fixture, run in runs]
        plan = ", ".join(f"{name} {value}" for name, value in symbolic_plan(LAPTOP).items())
        print("\n\n".join([*tables, f"Laptop plan, nothing computed: {plan}"]))
    _plot({fixture.title: run for fixture, run in runs}, arguments)


def _one(arguments: argparse.Namespace) -> None:
    ids = arguments.ids
    given = {option: getattr(arguments, option) for option in SIZES}
    if ids is not None and given["positions"] is None:
        given["positions"] = len(ids) - 1
    config = DecoderConfig(
        **{field: default if given[option] is None else given[option] for option, (field, default) in SIZES.items()}
    )
    run = commission(
        config,
        None if ids is None else ids[:-1],
        None if ids is None else ids[1:],
        seed=SEED if arguments.seed is None else arguments.seed,
        compare=arguments.compare,
        budget=BUDGET if arguments.budget is None else Budget(parameters=arguments.budget, positions=BUDGET.positions),
        backend=arguments.backend,
        threads=arguments.threads,
    )
    title = f"Decoder, {config.layers} complete block{'s' if config.layers > 1 else ''}"
    if arguments.json:
        print(to_json({"id": "own", "title": title, **run.to_dict(), **run.setting()}))
    else:
        print(decoder_table(title, run))
    _plot({title: run}, arguments)


def _plot(runs: dict[str, Commission], arguments: argparse.Namespace) -> None:
    if arguments.plot is not None:
        from depthgauge.studies.decoder.figures import decoder_figure

        plots.save(decoder_figure(runs), arguments.plot)
        print(f"depthgauge: wrote {arguments.plot}", file=sys.stderr)


def decoder_table(title: str, run: Commission) -> str:
    """Return a commission as a table of its sites to six digits, followed by one of the rules."""
    config, record = run.config, run.record
    unchanged = len(config.shapes()) - len(record.transformed)
    lines = [
        f"{title}, at initialization: a commissioning check, not a proof that it trains.",
        f"Width {config.width}, heads {config.heads} (key/value {config.kv_heads}), feed-forward {config.ff_width}, "
        f"vocabulary {config.vocabulary}, {len(run.input_ids)} positions, seed {run.seed}, float64",
        f"{config.parameters:,} parameters; factor {record.factor:.6f} on {len(record.transformed)} tensors, "
        f"{unchanged} unchanged",
        "",
        *aligned(list(_site_rows(run.initialized)), left=(1, 4, 7)),
        "",
        *aligned(list(_rule_rows(run)), left=(0, 6)),
    ]
    return "\n".join(lines)


def _site_rows(observation: Observation) -> Iterator[list[str]]:
    yield [
        "site",
        "label",
        "activation RMS",
        "activation ratio",
        "status",
        "adjoint RMS",
        "adjoint ratio",
        "status",
    ]
    for row in observation.to_dict()["sites"]:
        yield [_six_digits(value) for value in row.values()]


def _rule_rows(run: Commission) -> Iterator[list[str]]:
    yield ["rule", "mean loss", "activation ratio: min", "max", "adjoint ratio: min", "max", "sites out of band"]
    for rule, observation in run.observations.items():
        summary = observation.summary()
        outside = sum(
            status != (WITHIN, WITHIN)
            for status in zip(observation.activation_status, observation.adjoint_status, strict=True)
        )
        figures = [summary["mean_loss"]]
        figures += [summary[f"{end}_{what}_ratio"] for what in ("activation", "adjoint") for end in ("min", "max")]
        yield [rule, *map(_six_digits, figures), str(outside) if outside else "none"]


def _six_digits(value: Any) -> str:
    return f"{value:#.6g}" if isinstance(value, float) else str(value)
