#!/usr/bin/env python3
"""AdamW against the best kernel with the same memory traffic, and against torch.optim.AdamW(fused=True).

    python3 tools/benchmarks/adamw.py [--python PYTHON_WITH_TORCH] [--parameters N] [--rounds N]

adamw_bench compares with the kernels in one process, on the same pages. PyTorch's optimizer, fused and with its
defaults, runs in a process of its own (torch_adamw.py), after ours in every round. Medians over rounds.
"""
import os

from common import Table, find_torch, median, note, parser, program, run_json


def main():
    p = parser(__doc__)
    p.add_argument("--python", help="interpreter with PyTorch (default: this one, else /usr/bin/python3)")
    p.add_argument("--parameters", type=int, default=64 << 20)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--passes", type=int, default=7, help="timed passes of each contestant in a round")
    options = p.parse_args()
    if options.small:
        options.parameters, options.rounds, options.passes = 4 << 20, 1, 1
    sizes = [f"--parameters={options.parameters}", f"--rounds={options.passes}",
             f"--threads={options.threads}"]
    python = find_torch(options.python)
    ours, peers = [], []
    for index in range(options.rounds):
        ours.append(run_json([program(options, "adamw_bench"), "--json", *sizes]))
        line = f"round {index + 1} of {options.rounds}: {ours[-1]['adamw'] / 1e9:.2f} G parameters/s"
        if python:
            script = os.path.join(os.path.dirname(__file__), "torch_adamw.py")
            peers.append(run_json([python, script, "--json", *sizes])["parameters_per_second"])
            line += ", PyTorch " + ", ".join(f"{name} {rate / 1e9:.3f}" for name, rate in peers[-1].items())
        note(line)
    table = Table()
    rate = median(run["adamw"] for run in ours) / 1e9
    ratio = median(run["ratio"] for run in ours)
    table.at_least("AdamW / best kernel with the same traffic", rate, rate / ratio, 0.9, "G parameters/s")
    if python:
        for name, bar in (("fused", 0.9), ("default", 1)):
            peer = median(rates[name] for rates in peers) / 1e9
            times = median(run["adamw"] / rates[name] for run, rates in zip(ours, peers))
            table.at_least(f"AdamW / torch.optim.AdamW, {name}", times * peer, peer, bar, "G parameters/s")
    table.print()


if __name__ == "__main__":
    main()
