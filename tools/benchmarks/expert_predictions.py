#!/usr/bin/env python3
"""Predictions of training models with experts, all parameters, on well-known machines.

    python3 tools/benchmarks/expert_predictions.py [--markdown]

Every row comes from `sluice plan --json` with a description of engine/rates/machines. Nothing is run or
measured, so these are predictions and not results. docs/experts.md has the table. "Enough tokens" are those
of a step with which tokens would keep their busiest resource busy as long as weights and state keep theirs,
by the work of this plan.
"""
import sys

from common import parser, print_predictions, program, run_json

MODELS = [("Mixtral-8x7B", "mixtral-8x7b"), ("Qwen3-30B-A3B", "qwen3-30b-a3b")]
MACHINES = ["rtx-4090", "h100", "h200"]
BATCHES, SEQUENCE = (16, 64, 256), 2048
SMALL = "mixtral:layers=2,width=64,heads=4,kv_heads=2,ffn=64,vocab=256,context=64,experts=4,top=2"
HEADING = ["model", "machine", "batch", "s a step", "tokens/s", "bottleneck", "enough tokens",
           "written a step", "written a day"]


def rounded(value, digits):
    """In so many significant digits, without an exponent."""
    whole = float(f"{value:.{digits}g}")
    return f"{whole:.0f}" if whole >= 100 else f"{whole:g}"


def row_of(options, name, model, machine, batch, sequence):
    head = [name, machine, f"{batch} x {sequence}"]
    facts = run_json([program(options, "sluice"), "plan", "--json", "--machine", machine, "--model", model,
                      "--batch", str(batch), "--seq", str(sequence)], allowed=(0, 3))
    if not facts["feasible"]:
        return head + ["does not fit"] + ["-"] * 5
    bottleneck, wear = facts["bottleneck"], facts.get("drive_wear")
    enough = facts["tokens"] * facts["work_of_state"]["seconds"] / facts["work_of_tokens"]["seconds"]
    return head + [rounded(facts["seconds_predicted"], 3), f"{facts['tokens_per_second']:.0f}",
                   f"{bottleneck['name']}, {100 * bottleneck['fraction']:.0f} %",
                   rounded(enough, 2), f"{wear['bytes_per_step'] / 1e9:.0f} GB" if wear else "-",
                   f"{wear['bytes_per_day'] / 1e12:.3g} TB" if wear else "-"]


def main():
    made = parser(__doc__)
    made.add_argument("--markdown", action="store_true", help="print the table of docs/experts.md")
    options = made.parse_args()
    models = [("small", SMALL)] if options.small else MODELS
    batches, sequence = ((4,), 64) if options.small else (BATCHES, SEQUENCE)
    rows = [HEADING] + [row_of(options, name, model, machine, batch, sequence)
                        for name, model in models for machine in MACHINES for batch in batches]
    print_predictions(rows, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
