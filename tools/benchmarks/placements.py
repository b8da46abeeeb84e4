#!/usr/bin/env python3
"""Plans of the search against plans of the --placement rules, run on this machine.

    python3 tools/benchmarks/placements.py [--machine FILE] [--rounds N] [--only NAMES]

For each configuration of prediction_error.py with NVMe, `sluice train` runs with --placement auto, lowest,
highest, weights-first and state-first in turn, for N rounds. The first two steps of a run do not count. The
time of a placement is the median of its other steps. A rule whose plan equals that of the search is not run.
The bar: the plan of the search takes at most 3 % longer than the best of the rules. `sluice bench` describes
the machine first, unless --machine names a description. Needs 12 GiB in --dir and an hour; nothing else
should run.
"""
import os
import sys

from common import Table, median, note, plan, train, work_directory
from prediction_error import WARM, arguments, parse_arguments, prepare, shrunk

RULES = ["lowest", "highest", "weights-first", "state-first"]
STEPS = 2  # in each round
BAR = 1.03


def same_plan(one, other):
    return all(one[key] == other[key] for key in ("seconds_predicted", "moved_bytes", "recompute", "arenas"))


def measure(options, configuration, machine, work):
    """Median seconds of a step by placement."""
    words = {rule: arguments(options, configuration, machine, work) + ["--placement", rule]
             for rule in ["auto"] + RULES}
    facts = {rule: plan(options, words[rule]) for rule in words}
    for rule in facts:
        if not facts[rule]["feasible"]:
            sys.exit(f"{configuration[0]}, {rule}: {facts[rule]['reason']}")
    run = [rule for rule in words if rule == "auto" or not same_plan(facts[rule], facts["auto"])]
    seconds = {rule: [] for rule in run}
    for _ in range(options.rounds):
        for rule in run:
            steps = train(options, words[rule] + ["--data", os.path.join(work, "tokens.bin"), "--steps",
                                                  str(STEPS + WARM)], work)[WARM:]
            seconds[rule] += [step["seconds"] for step in steps]
    return {rule: median(list_) for rule, list_ in seconds.items()}


def main():
    options, chosen = parse_arguments(__doc__, "--rounds", 3, "rounds of all placements in turn")
    chosen = [c for c in chosen if c[6][2]]
    table = Table()
    with work_directory(options) as work:
        machine = prepare(options, work)
        note(f"{'seconds of a step':36}" + "".join(f"{rule:>15}" for rule in ["auto"] + RULES))
        for configuration in chosen[:1] if options.small else chosen:
            if options.small:
                configuration = shrunk(configuration)
            found = measure(options, configuration, machine, work)
            cells = [f"{found[rule]:.3f}" if rule in found else "the same" for rule in ["auto"] + RULES]
            note(f"{configuration[0]:36}" + "".join(f"{cell:>15}" for cell in cells))
            best = min((found.get(rule, found["auto"]) for rule in RULES))
            table.at_most(configuration[0], found["auto"], best, BAR, "s")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
