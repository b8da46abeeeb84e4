#!/usr/bin/env python3
"""Time and memory that `sluice plan` takes, over presets and built-in machines.

    python3 tools/benchmarks/planning.py [--models NAMES] [--machines NAMES] [-- OPTIONS of plan]

Each pair is planned once, with all options as they are by default, and so with the advice that follows a plan
or a refusal. What counts are the process's seconds of processor time, so other load on the machine matters
little, and the most memory that it has held. The bars: 60 s and 2 GiB each. All pairs take hours; by default
the models are the largest of each kind.
"""
import os
import subprocess
import sys

from common import MACHINES, Table, note, parser, program

SECONDS, BYTES = 60, 2 << 30
LARGEST = ["gpt-oss-120b", "qwen3-235b-a22b", "llama-405b", "mixtral-8x22b", "qwen2.5-72b", "gemma-2-27b",
           "qwen3-30b-a3b", "olmoe-1b-7b"]


def known(options, word):
    """The names that a refusal of a wrong one lists."""
    given = {"model": "gpt2", word: "?"}
    command = [program(options, "sluice"), "plan", *(f"--{name}={value}" for name, value in given.items())]
    refusal = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return refusal.partition("Known are ")[2].splitlines()[0].partition(". ")[0].rstrip(".").split(", ")


def measure(options, model, machine):
    """Exit code, processor seconds and bytes of a plan."""
    command = [program(options, "sluice"), "plan", "--model", model, "--machine", machine, *options.options]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    made = parser(__doc__)
    made.add_argument("--models", default=",".join(LARGEST), help="presets, divided by commas, or all")
    made.add_argument("--machines", default="all", help="built-in machines, divided by commas, or all")
    made.add_argument("options", nargs="*", help="options of plan, behind --")
    options = made.parse_args()
    models = known(options, "model") if options.models == "all" else options.models.split(",")
    machines = known(options, "machine") if options.machines == "all" else options.machines.split(",")
    if options.small:
        models, machines = ["gpt2"], ["cpu-2core"]
    rows, failed = [], []
    note(f"{'model':20}{'machine':20}{'exit':>5}{'seconds':>10}{'MiB':>8}")
    for model in models:
        for machine in machines:
            code, seconds, held = measure(options, model, machine)
            note(f"{model:20}{machine:20}{code:5}{seconds:10.1f}{held / (1 << 20):8.0f}")
            rows.append((seconds, held, f"{model} on {machine}"))
            if code not in (0, 3):
                failed.append(f"{model} on {machine}: exit code {code}")
    table = Table()
    slowest, largest = max(rows), max(rows, key=lambda row: row[1])
    table.at_most(slowest[2], slowest[0], SECONDS, 1, "s")
    table.at_most(largest[2], largest[1] / (1 << 20), BYTES / (1 << 20), 1, "MiB")
    table.print()
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
