#!/usr/bin/env python3
"""How far predictions are from what is measured, on this machine.

    python3 tools/benchmarks/prediction_error.py [--machine FILE] [--steps N] [--only NAMES]

First `sluice bench` describes the machine, unless --machine names a description. Then for each of twelve
configurations, which were chosen before anything was tuned and serve for nothing else: `sluice plan`
predicts, `sluice train` runs, and the median of its steps after the first two is held against the
prediction; arenas and bytes moved must be exact, and the process's resident memory as planned within 64 MiB.
Beside it stands the distance to the limit: the measured step over the least that any placement could reach
(`least_seconds` of the plan). At last the machine is described and all planned once more (half a minute),
to show how far predictions differ by its own unsteadiness. Needs 12 GiB of disk in --dir, and nothing else
running.
"""
import os
import sys

from common import Table, median, note, parser, plan, program, run, train, work_directory, write_random_tokens

MIB = 1 << 20
GPT = "gpt2"
MEDIUM = "gpt2-medium"
LLAMA = "llama:layers=10,width=1024,heads=16,kv_heads=4,ffn=2816,vocab=32000,context=1024"

# name, model, sequences, tokens, precision, clip, budgets: device (None: that is the host), host, disk
CONFIGURATIONS = [
    ("gpt2 in memory", GPT, 4, 256, "bf16", 1, (None, "6GiB", None)),
    ("gpt2 in memory, long, no clipping", GPT, 2, 1024, "bf16", 0, (None, "6GiB", None)),
    ("gpt2 three tiers", GPT, 8, 256, "bf16", 1, ("600MiB", "1200MiB", "8GiB")),
    ("gpt2 on disk", GPT, 4, 256, "bf16", 1, (None, "900MiB", "8GiB")),
    ("gpt2 on disk, fp32, no clipping", GPT, 8, 256, "fp32", 0, (None, "1200MiB", "8GiB")),
    ("llama in memory", LLAMA, 4, 512, "bf16", 1, (None, "6GiB", None)),
    ("llama three tiers, no clipping", LLAMA, 8, 256, "bf16", 0, ("600MiB", "1200MiB", "8GiB")),
    ("llama on disk", LLAMA, 2, 512, "bf16", 1, (None, "1GiB", "8GiB")),
    ("medium in memory, fp32", MEDIUM, 2, 256, "fp32", 1, (None, "9GiB", None)),
    ("medium three tiers", MEDIUM, 4, 256, "bf16", 1, ("1GiB", "3GiB", "10GiB")),
    ("medium on disk, no clipping", MEDIUM, 8, 256, "bf16", 0, (None, "1800MiB", "10GiB")),
    ("medium on disk, small batch", MEDIUM, 1, 256, "bf16", 1, (None, "1800MiB", "10GiB")),
]
SMALL = "gpt2:layers=2,width=64,heads=2,vocab=512,context=64"
ERROR_MEDIAN, ERROR_WORST, LIMIT_MEDIAN = 0.08, 0.20, 1.15
WARM = 2
ALIGNMENT = {"device": 4096, "host": 4096, "nvme": MIB}


def arguments(options, configuration, machine, work):
    _, model, batch, sequence, precision, clip, (device, host, disk) = configuration
    words = ["--model", model, "--batch", str(batch), "--seq", str(sequence), "--precision", precision,
             "--clip", str(clip), "--host-mem", host, "--threads", str(options.threads), "--machine", machine]
    if device:
        words += ["--gpu-mem", device]
    if disk:
        words += ["--nvme-dir", work, "--nvme-mem", disk]
    return words


def shrunk(configuration):
    """For --small: no more than shows that the script works."""
    name, _, _, _, precision, clip, (device, _, disk) = configuration
    return (name, SMALL, 2, 64, precision, clip, (device and "8MiB", "120MiB", disk and "64MiB"))


def parse_arguments(description, count, default, what):
    """What is asked for, and the configurations that are chosen by it."""
    made = parser(description)
    made.add_argument("--machine", help="description to predict with (default: measured now)")
    made.add_argument("--only", help="configurations whose name contains this")
    made.add_argument(count, type=int, default=default, help=f"{what} (default: {default})")
    options = made.parse_args()
    return options, [c for c in CONFIGURATIONS if not options.only or options.only in c[0]]


def describe(options, work, name):
    """The machine as it is measured now, or as it is given."""
    if options.machine or options.small:
        return options.machine or "cpu-2core"
    machine = os.path.join(work, name)
    note(run([program(options, "sluice"), "bench", "--device", "cpu", "--nvme-dir", work, "--out", machine,
              "--threads", str(options.threads)]))
    return machine


def prepare(options, work):
    """Writes tokens to train on, and returns the machine's description."""
    write_random_tokens(os.path.join(work, "tokens.bin"), 200_000 if not options.small else 2000,
                        512 if options.small else 32000)
    return describe(options, work, "machine.json")


def compare(options, configuration, machine, work):
    words = arguments(options, configuration, machine, work)
    facts = plan(options, words)
    if not facts["feasible"]:
        sys.exit(f"{configuration[0]}: {facts['reason']}")
    steps = train(options, words + ["--data", os.path.join(work, "tokens.bin"), "--steps",
                                    str(options.steps + WARM)], work)[WARM:]
    seconds = median(step["seconds"] for step in steps)
    step = steps[-1]
    moved = {lane: (n, step["moved_bytes"].get(lane)) for lane, n in facts["moved_bytes"].items()
             if n != step["moved_bytes"].get(lane)}
    peaks = {tier: max(facts["body_peaks"][body][tier] for body in ("load", "first", "step")
                       if body in facts["body_peaks"]) for tier in facts["arenas"]}
    # A peak is where a placed range ends, with what aligns the next; what a task touches ends before.
    arenas = {tier: (n, step["peak_bytes"][tier]) for tier, n in peaks.items()
              if not 0 <= n - step["peak_bytes"][tier] < ALIGNMENT[tier]}
    resident = sum(facts["arenas"].get(tier, 0) for tier in ("device", "host"))
    return {"predicted": facts["seconds_predicted"], "measured": seconds, "least": facts["least_seconds"],
            "moved": moved, "arenas": arenas, "beside": step["process_peak_bytes"] - resident,
            "granted": facts["runtime_reserve"] + facts["program_bytes"]}


def main():
    options, chosen = parse_arguments(__doc__, "--steps", 6, "measured steps of each")
    errors, distances, exact, within = [], [], 0, 0
    with work_directory(options) as work:
        machine = prepare(options, work)
        note(f"{'':36}{'predicted':>12}{'measured':>12}{'error':>8}{'least':>10}{'measured / least':>18}")
        if options.small:
            chosen = [shrunk(configuration) for configuration in chosen]
        predicted = []
        for configuration in chosen:
            found = compare(options, configuration, machine, work)
            predicted.append(found["predicted"])
            errors.append(found["predicted"] / found["measured"] - 1)
            distances.append(found["measured"] / found["least"])
            note(f"{configuration[0]:36}{found['predicted']:10.3f} s{found['measured']:10.3f} s"
                 f"{100 * errors[-1]:+7.1f}%{found['least']:8.3f} s{distances[-1]:18.2f}")
            for what in ("moved", "arenas"):
                if found[what]:
                    note(f"  {what}, planned and measured: {found[what]}")
            exact += not found["moved"] and not found["arenas"]
            within += found["beside"] <= found["granted"] + 64 * MIB
            if found["beside"] > found["granted"] + 64 * MIB:
                note(f"  resident: {found['beside']} bytes beside the arenas, {found['granted']} planned")
        after = describe(options, work, "after.json")
        again = [plan(options, arguments(options, configuration, after, work)) for configuration in chosen]
        drift = [facts["seconds_predicted"] / before - 1 for facts, before in zip(again, predicted)]
    sizes = sorted(abs(e) for e in errors)
    table = Table()
    table.at_most("median error of a step", median(sizes), 1, ERROR_MEDIAN, "")
    table.at_most("worst error of a step", sizes[-1], 1, ERROR_WORST, "")
    table.at_most("measured step / least of any placement", median(distances), 1, LIMIT_MEDIAN, "")
    table.print()
    if after != machine:
        note("predictions after one more `sluice bench`, of those before: "
             f"median {100 * median(drift):+.1f} %, {100 * min(drift):+.1f} to {100 * max(drift):+.1f} %")
    note(f"arenas and bytes moved as planned: {exact} of {len(chosen)}; "
         f"resident memory at most 64 MiB above the plan: {within} of {len(chosen)}")


if __name__ == "__main__":
    sys.exit(main())
