#!/usr/bin/env python3
"""Predicted steps of Llama shapes on GPUs beside the least that any placement could reach.

    python3 tools/benchmarks/bounds.py [--only NAMES]

Every row comes from `sluice plan --json` with a description of engine/rates/machines, in bf16 with sequences
of 4096. Nothing is run or measured. "Clipped" rows compare steps whose guesses that nothing is clipped are
right or wrong. With --overlap auto, a run in which every step is clipped takes the faster of repairs and
updates that wait for the norm.
"""
import json
import os
import sys

from common import Table, description_of, note, parser, program, run_json, work_directory

SEQUENCE = 4096
SLOW_ADAMW = 140e9  # bytes/s
RARE = 1 / 80       # of steps are clipped
RARE_MAX, ALL_MAX = 1.02, 1.25

# machine, model, sequences a step, bar of a step over the least of any placement
LEAST = [
    ("h200", "llama-7b", 4, 1.05),
    ("h200", "llama-7b", 8, 1.05),
    ("h200", "llama-13b", 4, 1.20),
    ("h200", "llama-13b", 8, 1.20),
    ("h100-vm", "llama-7b", 4, 1.30),
    ("h100-vm", "llama-7b", 8, 1.15),
]
# With everything recomputed and a slow optimizer. Model, sequences, host memory, bar of a step over its compute
COMPUTE = [
    ("llama-7b", 4, "140GiB", 1.05),
    ("llama-7b", 8, "140GiB", 1.02),
    ("llama-13b", 4, "220GiB", 1.05),
    ("llama-13b", 8, "220GiB", 1.02),
]
SMALL = "llama:layers=4,width=64,heads=4,kv_heads=4,ffn=128,vocab=256,context=4096"


class Case:
    def __init__(self, machine, model, batch, bar, limit, more):
        self.name = f"{os.path.splitext(os.path.basename(machine))[0]} {model} {batch * SEQUENCE // 1024}k"
        self.machine, self.model, self.batch, self.bar, self.limit = machine, model, batch, bar, limit
        self.more = more


def cases(work):
    slow = description_of("h200")
    for lane in slow["lanes"]:
        if lane["lane"] == "optimizer":
            lane["bytes_per_second"] = SLOW_ADAMW
    path = os.path.join(work, "h200-slow-adamw.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(slow, file)
    return ([Case(machine, model, batch, bar, "least", ["--host-mem", "110GiB"])
             for machine, model, batch, bar in LEAST] +
            [Case(path, model, batch, bar, "compute",
                  ["--host-mem", host, "--gpu-mem", "24GiB", "--recompute", "all"])
             for model, batch, host, bar in COMPUTE])


def plan(options, case, *more):
    return run_json([program(options, "sluice"), "plan", "--json", "--no-advice", "--device", "cuda",
                     "--machine", case.machine, "--model", SMALL if options.small else case.model, "--batch",
                     str(case.batch), "--seq", str(SEQUENCE), *case.more, *more])


def limit_of(case, facts):
    return facts["least_seconds"] if case.limit == "least" else facts["lane_busy"]["compute"]


def add_clipped(table, case, facts, waits):
    """`waits`: a plan whose updates wait for the norm."""
    if facts["updates"] is None:
        note(f"{case.name}: the plan guesses nothing, so it does not matter which steps are clipped")
        return
    right, wrong, plain = (facts["updates"]["seconds_" + kind] for kind in ("guessed", "repaired", "plain"))
    every = min(wrong, plain) if facts["updates"]["break_even"] < 1 else wrong
    table.at_most(f"{case.name}, all clipped / a plan that waits", every, waits["seconds_predicted"], 1, "s")
    if case.limit == "compute":
        table.at_most(f"{case.name}, all clipped / compute", every, limit_of(case, facts), ALL_MAX, "s")
    table.at_most(f"{case.name}, 1 in 80 clipped / none", (1 - RARE) * right + RARE * wrong, right, RARE_MAX,
                  "s")


def main():
    made = parser(__doc__)
    made.add_argument("--only", default="", help="cases whose name contains this")
    options = made.parse_args()
    table = Table()
    with work_directory(options) as work:
        for case in cases(work):
            if options.only not in case.name:
                continue
            for clip in ("0", "1"):
                facts = plan(options, case, "--clip", clip)
                table.at_most(f"{case.name}, clip {clip} / {case.limit}", facts["seconds_predicted"],
                              limit_of(case, facts), case.bar, "s")
            add_clipped(table, case, facts, plan(options, case, "--clip", "1", "--overlap", "never"))
    note("Predictions from data sheets, not results.")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
