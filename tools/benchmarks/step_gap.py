#!/usr/bin/env python3
"""How long lanes stand still between two training steps because a step is decided on.

    python3 tools/benchmarks/step_gap.py [--steps N]

A plan that guesses updates needs to know of a step whether its guess was right before the next step is
issued: the trainer reads the clip factor then. The gap is the time from the end of the task that writes the
factor until the first instruction of the next step begins, on any lane. It is read from the traces of
`sluice profile`, and compared with the step.
"""
import json
import os
import sys

from common import Table, median, parser, program, run, work_directory, write_random_tokens

GAP_MAX = 0.01
GPT2 = ["--model", "gpt2", "--batch", "8", "--micro-batch", "4", "--seq", "256", "--host-mem", "4GiB"]
LAYERS = "gpt2:layers=6,width=512,heads=8,vocab=256,context=256"
CASES = [("gpt2 124M", GPT2),
         ("20 million parameters",
          ["--model", LAYERS, "--batch", "4", "--micro-batch", "2", "--host-mem", "1GiB"])]
SMALL = ["--model", "gpt2:layers=2,width=64,heads=2,vocab=256,context=64", "--batch", "2",
         "--host-mem", "120MiB"]


def gaps(path):
    """Pairs (gap, step) of seconds, for each step that follows another."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    begins, decided = {}, {}
    for e in events:
        step = e.get("args", {}).get("step")
        if e["ph"] not in "Xb" or not step:
            continue
        begins[step] = min(e["ts"], begins.get(step, e["ts"]))
        if e["cat"] == "set_scalars":
            decided[step] = max(e["ts"] + e["dur"], decided.get(step, 0))
    return [((begins[step + 1] - decided[step]) / 1e6, (begins[step + 1] - begins[step]) / 1e6)
            for step in sorted(decided) if step + 1 in begins]


def main():
    made = parser(__doc__)
    made.add_argument("--steps", type=int, default=12, help="steps of each training (default: 12)")
    options = made.parse_args()
    table = Table()
    with work_directory(options) as work:
        data = os.path.join(work, "tokens.bin")
        write_random_tokens(data, 20_000, 256)
        for name, words in [("small", SMALL)] if options.small else CASES:
            report = os.path.join(work, name.replace(" ", "-"))
            run([program(options, "sluice"), "profile", "--steps", str(options.steps), "--out", report, "--",
                 "--device", "cpu", "--precision", "bf16", "--clip", "1000", "--overlap", "always", "--data",
                 data, "--threads", str(options.threads), *words])
            found = gaps(os.path.join(report, "trace.json"))
            if not found:
                sys.exit(f"{name}: the trace has no step that follows a guess")
            table.at_most(f"{name}, gap / step", median(gap for gap, _ in found),
                          median(step for _, step in found), GAP_MAX, "s")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
