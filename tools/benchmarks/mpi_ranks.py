#!/usr/bin/env python3
"""Ranks that share a machine's cores against one rank doing the same work, with real mpirun.

    python3 tools/benchmarks/mpi_ranks.py [--dir DIR] [--rounds N] [--ranks N ...] [--mpirun "mpirun ..."]

A GPT-2 of 23M parameters on the cpu device, 16 x 256 random tokens a step over all ranks, everything in host
memory, ZeRO stage 3. For each precision, a round runs `sluice train` without a launcher and then under mpirun
with every number of ranks, so that a disturbance of the machine hits all. Ranks divide the cores. The ratio
is that of tokens a second: medians after the warm-up steps, from the metrics files; then medians over rounds.
"""
import os
import shlex
import shutil
import sys

from common import (SKIPPED, Table, busy_seconds, median, note, parser, train, work_directory,
                    write_random_tokens)

LARGE = "gpt2:layers=6,width=512,heads=8,vocab=8192,context=256"
SMALL = "gpt2:layers=2,width=64,heads=2,vocab=512,context=64"
BAR = 0.85  # at most 15 % below one rank


def parse():
    p = parser(__doc__)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=5, help="steps of a run")
    p.add_argument("--warmup", type=int, default=1, help="steps of a run that do not count")
    p.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    p.add_argument("--precision", choices=["fp32", "bf16"], action="append",
                   help="precision to measure (default: bf16)")
    p.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe --bind-to none",
                   help="the launcher with its options (default: %(default)s)")
    o = p.parse_args()
    if not 0 < o.warmup < o.steps:
        p.error("--warmup must be from 1 to --steps - 1")
    o.precision = o.precision or ["bf16"]
    o.launcher = shlex.split(o.mpirun)
    o.model, o.batch, o.seq, o.vocabulary = LARGE, 16, 256, 8192
    if o.small:
        o.rounds, o.steps, o.warmup, o.ranks = 1, 3, 1, [2]
        o.model, o.batch, o.seq, o.vocabulary = SMALL, 4, 64, 512
    return o


def speed(options, precision, ranks, data, work):
    """Median tokens a second of one run. 0 ranks: without a launcher."""
    arguments = ["--model", options.model, "--batch", str(options.batch), "--seq", str(options.seq),
                 "--steps", str(options.steps), "--data", data, "--precision", precision,
                 "--threads", str(max(1, options.threads // max(1, ranks)))]
    launcher = options.launcher + ["-np", str(ranks)] if ranks else []
    steps = train(options, arguments, work, launcher)[options.warmup:]
    busy = ", ".join(f"{lane} {value:.2f}" for lane, value in busy_seconds(steps).items() if value > 0.005)
    tokens = median(step["tokens_per_second"] for step in steps)
    note(f"  {precision}, {f'{ranks} ranks' if ranks else 'no launcher'}: {tokens:.0f} tokens/s; rank 0's "
         f"lanes are busy for {busy} of {options.batch * options.seq / tokens:.2f} s")
    return tokens


def main():
    options = parse()
    if not shutil.which(options.launcher[0]):
        note(f"{options.launcher[0]} not found. Add it with apt-get install openmpi-bin")
        sys.exit(SKIPPED)
    with work_directory(options) as work:
        data = os.path.join(work, "tokens.bin")
        write_random_tokens(data, options.batch * options.seq * options.steps + 1, options.vocabulary)
        speeds = {}  # by (precision, ranks): one figure for each round
        for index in range(options.rounds):
            note(f"round {index + 1} of {options.rounds}")
            for precision in options.precision:
                for ranks in [0] + options.ranks:
                    found = speed(options, precision, ranks, data, work)
                    speeds.setdefault((precision, ranks), []).append(found)
        table = Table()
        for precision in options.precision:
            alone = median(speeds[precision, 0])
            for ranks in options.ranks:
                ratio = median(a / b for a, b in zip(speeds[precision, ranks], speeds[precision, 0]))
                table.at_least(f"{precision}, {ranks} ranks under mpirun / one without", ratio * alone, alone,
                               BAR, "tokens/s")
        table.print()


if __name__ == "__main__":
    main()
