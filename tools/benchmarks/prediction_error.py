#!/usr/bin/env python3
"""How far predictions are from measurements on this machine.

    python3 tools/benchmarks/prediction_error.py [--machine FILE] [--steps N] [--only NAMES]

First `sluice bench` describes the machine, unless --machine names a description. There are twelve
configurations, which were chosen before anything was tuned and serve no other purpose. For each, `sluice
plan` predicts, `sluice train` runs, and the median of its steps after the first two is compared with the
prediction. Arenas and bytes moved must be exact, and the resident memory of the process must be at most 64
MiB above the plan. The distance to the lower bound is printed too: the measured step divided by
`least_seconds` of the plan. At the end the machine is described and everything planned once more (half a
minute), to show how far predictions differ because the machine is unsteady. Needs 12 GiB in --dir; nothing
else should run.
"""
import os
import sys

from common import Table, median, note, parser, plan, program, run, train, work_directory, write_random_tokens

MIB = 1 << 20
GPT = "gpt2"
MEDIUM = "gpt2-medium"
LLAMA = "llama:layers=10,width=1024,heads=16,kv_heads=4,ffn=2816,vocab=32000,context=1024"

NEVER_CLIPS = 1000  # updates depend on the norm, and steps are those that are predicted: none is clipped
# name, model, sequences, tokens, precision, clip, budgets: device (None: no such arena), host, nvme
CONFIGURATIONS = [
    ("gpt2 in memory", GPT, 4, 256, "bf16", NEVER_CLIPS, (None, "6GiB", None)),
    ("gpt2 in memory, long, no clipping", GPT, 2, 1024, "bf16", 0, (None, "6GiB", None)),
    ("gpt2 three tiers", GPT, 8, 256, "bf16", NEVER_CLIPS, ("600MiB", "1200MiB", "8GiB")),
    ("gpt2 on a drive", GPT, 4, 256, "bf16", NEVER_CLIPS, (None, "900MiB", "8GiB")),
    ("gpt2 on a drive, fp32, no clipping", GPT, 8, 256, "fp32", 0, (None, "1200MiB", "8GiB")),
    ("llama in memory", LLAMA, 4, 512, "bf16", NEVER_CLIPS, (None, "6GiB", None)),
    ("llama three tiers, no clipping", LLAMA, 8, 256, "bf16", 0, ("600MiB", "1200MiB", "8GiB")),
    ("llama on a drive", LLAMA, 2, 512, "bf16", NEVER_CLIPS, (None, "1GiB", "8GiB")),
    ("medium in memory, fp32", MEDIUM, 2, 256, "fp32", NEVER_CLIPS, (None, "9GiB", None)),
    ("medium three tiers", MEDIUM, 4, 256, "bf16", NEVER_CLIPS, ("1GiB", "3GiB", "10GiB")),
    ("medium on a drive, no clipping", MEDIUM, 8, 256, "bf16", 0, (None, "1800MiB", "10GiB")),
    ("medium on a drive, small batch", MEDIUM, 1, 256, "bf16", NEVER_CLIPS, (None, "1800MiB", "10GiB")),
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
    """For --small: tiny sizes, which only show that the script works."""
    name, _, _, _, precision, clip, (device, _, disk) = configuration
    return (name, SMALL, 2, 64, precision, clip, (device and "8MiB", "120MiB", disk and "64MiB"))


def parse_arguments(description, count, default, what):
    """The options, and the configurations that they choose."""
    made = parser(description)
    made.add_argument("--machine", help="machine description to predict with (default: measured now)")
    made.add_argument("--only", help="configurations whose name contains this")
    made.add_argument(count, type=int, default=default, help=f"{what} (default: {default})")
    options = made.parse_args()
    return options, [c for c in CONFIGURATIONS if not options.only or options.only in c[0]]


def describe(options, work, name):
    """The machine description: the one given, or one measured now."""
    if options.machine or options.small:
        return options.machine or "cpu-2core"
    machine = os.path.join(work, name)
    note(run([program(options, "sluice"), "bench", "--device", "cpu", "--nvme-dir", work, "--out", machine,
              "--threads", str(options.threads)]))
    return machine


def prepare(options, work):
    """Writes tokens to train on, and returns the machine description."""
    write_random_tokens(os.path.join(work, "tokens.bin"), 200_000 if not options.small else 2000,
                        512 if options.small else 32000)
    return describe(options, work, "machine.json")


def bodies_that_ran(facts, steps):
    """Names of the bodies behind the peaks of the last step's metrics. A step that begins with `guess` or
    `repair` has later waves of its own."""
    begins = {{"plain": "step", "guessed": "guess", "repaired": "repair"}[step["order"]] for step in steps}
    names = {"load", "first", "middle_wave", "last_wave"} | begins
    if begins - {"step"}:
        names |= {"guess_middle_wave", "guess_last_wave"}
    return names & facts["body_peaks"].keys()


def compare(options, configuration, machine, work):
    words = arguments(options, configuration, machine, work)
    facts = plan(options, words)
    if not facts["feasible"]:
        sys.exit(f"{configuration[0]}: {facts['reason']}")
    steps = train(options, words + ["--data", os.path.join(work, "tokens.bin"), "--steps",
                                    str(options.steps + WARM)], work)
    ran = bodies_that_ran(facts, steps)
    steps = steps[WARM:]
    seconds = median(step["seconds"] for step in steps)
    step = steps[-1]
    moved = {lane: (n, step["moved_bytes"].get(lane)) for lane, n in facts["moved_bytes"].items()
             if n != step["moved_bytes"].get(lane)}
    # A planned peak includes the padding after the last range; a measured one ends with the bytes in use.
    peaks = {tier: max(facts["body_peaks"][body][tier] for body in ran) for tier in facts["arenas"]}
    arenas = {tier: (n, step["peak_bytes"][tier]) for tier, n in peaks.items()
              if not 0 <= n - step["peak_bytes"][tier] < ALIGNMENT[tier]}
    resident = sum(facts["arenas"].get(tier, 0) for tier in ("device", "host"))
    return {"predicted": facts["seconds_predicted"], "measured": seconds, "least": facts["least_seconds"],
            "moved": moved, "arenas": arenas, "beside": step["process_peak_bytes"] - resident,
            "granted": facts["runtime_reserve"] + facts["program_bytes"]}


def main():
    options, chosen = parse_arguments(__doc__, "--steps", 6, "measured steps of each configuration")
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
                note(f"  resident: {found['beside']} bytes outside the arenas, {found['granted']} planned")
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
        note("predictions after one more `sluice bench`, against those before: "
             f"median {100 * median(drift):+.1f} %, {100 * min(drift):+.1f} to {100 * max(drift):+.1f} %")
    note(f"arenas and bytes moved as planned: {exact} of {len(chosen)}; "
         f"resident memory at most 64 MiB above the plan: {within} of {len(chosen)}")


if __name__ == "__main__":
    sys.exit(main())
