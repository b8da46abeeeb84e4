#!/usr/bin/env python3
"""Levels of recomputation, run on this machine: what they save of activations and cost in time.

    python3 tools/benchmarks/levels.py [--machine FILE] [--rounds N] [--only NAMES]

Everything lives in host memory. For a GPT-2 and a Llama with a vocabulary of 256, `sluice train` runs in turn,
for N rounds: with everything kept (--recompute none), with the level `cheap` for all layers, and with
--recompute auto in a budget that has room for 0.7 of the activations of the first. The first two steps of a
run do not count; times are medians of the others. `sluice bench` describes the machine first, unless --machine
names a description. Needs ten minutes; nothing else should run.
"""
import os
import sys

from common import Table, median, note, parser, plan, program, run, train, work_directory, write_random_tokens

WARM, STEPS = 2, 3  # in each round
SHAPES = [  # name, model, bar of the activations that `cheap` keeps
    ("GPT-2", "gpt2:layers=6,width=768,heads=12,vocab=256,context=512", 0.65),
    ("Llama", "llama-7b:layers=6,width=768,heads=12,kv_heads=12,ffn=2048,vocab=256,context=512", 0.72),
]
SMALL = {"GPT-2": "gpt2:layers=2,width=64,heads=2,vocab=256,context=64",
         "Llama": "llama-7b:layers=2,width=64,heads=2,kv_heads=2,ffn=160,vocab=256,context=64"}
PLENTY = 6 << 30
PART = 0.7
SLOWER_CHEAP, SLOWER_AUTO = 1.02, 1.03


def activations(facts):
    return facts["homes"]["activations"]["host"]


def ways_of(options, words):
    """Arguments and facts of a plan by way."""
    def way(level, bytes_):
        arguments = words + ["--recompute", level, "--host-mem", str(bytes_)]
        return arguments, plan(options, arguments)

    ways = {"none": way("none", PLENTY), "cheap": way("cheap", PLENTY)}
    kept = ways["none"][1]
    outside = kept["runtime_reserve"] + kept["program_bytes"]
    less = kept["arenas"]["host"] - int((1 - PART) * activations(kept)) + outside
    ways["auto"] = way("auto", less)
    for name, (_, facts) in ways.items():
        if not facts["feasible"]:
            sys.exit(f"{name}: {facts['reason']}")
    return ways


def measure(options, ways, work):
    seconds = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (arguments, _) in ways.items():
            steps = train(options, arguments + ["--data", os.path.join(work, "tokens.bin"), "--steps",
                                                str(WARM + STEPS)], work)[WARM:]
            seconds[name] += [step["seconds"] for step in steps]
    return {name: median(list_) for name, list_ in seconds.items()}


def main():
    made = parser(__doc__)
    made.add_argument("--machine", help="machine description to plan with (default: measured now)")
    made.add_argument("--only", help="shapes whose name contains this")
    made.add_argument("--rounds", type=int, default=3, help="rounds of all ways in turn (default: 3)")
    options = made.parse_args()
    table = Table()
    with work_directory(options) as work:
        write_random_tokens(os.path.join(work, "tokens.bin"), 2000 if options.small else 200_000, 256)
        machine = options.machine or "cpu-2core"
        if not options.machine and not options.small:
            machine = os.path.join(work, "machine.json")
            note(run([program(options, "sluice"), "bench", "--device", "cpu", "--out", machine, "--threads",
                      str(options.threads)]))
        for name, model, bar in SHAPES:
            if options.only and options.only not in name:
                continue
            words = ["--model", SMALL[name] if options.small else model, "--batch", "8", "--micro-batch", "1",
                     "--machine", machine, "--threads", str(options.threads)]
            ways = ways_of(options, words)
            kept = activations(ways["none"][1])
            found = measure(options, ways, work)
            for way in ways:
                facts = ways[way][1]
                note(f"{name}, {way:6}{found[way]:9.3f} s a step, {facts['seconds_predicted']:.3f} predicted, "
                     f"{activations(facts) / 2**20:.0f} MiB of activations")
            table.at_most(f"{name}: activations, cheap / none", activations(ways["cheap"][1]), kept, bar, "bytes")
            table.at_most(f"{name}: a step, cheap / none", found["cheap"], found["none"], SLOWER_CHEAP, "s")
            table.at_most(f"{name}: a step, auto with {PART} of the activations / none", found["auto"], found["none"],
                          SLOWER_AUTO, "s")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
