#!/usr/bin/env python3
"""GPT-2 124M, 4 x 256 tokens a step: against the processor, against PyTorch, and with all state on a drive.

    python3 tools/benchmarks/gpt2_small.py [--python PYTHON_WITH_TORCH] [--dir DIR] [--rounds N]

For fp32 and bf16, from the metrics of `sluice train` runs on random tokens:
- everything in host memory: 6 x parameters x tokens a second, against the fastest of some large matrix
  products by a library with its own threads (matmul_bench --peak);
- tokens a second against PyTorch, eager and compiled (torch_gpt2.py; bf16: autocast), and in bf16 against
  DeepSpeed's ZeRO-3 with CPU offload (deepspeed_gpt2.py), where an interpreter has them (peers.txt);
- weights and optimizer state on NVMe, with the largest --host-mem at which `sluice plan` keeps at most 1 % of
  them in memory: the step against the larger of 1.3 times the step in host memory and 1.1 times the busiest
  lane. The lane's time is taken from the same run, and from a serial run, where it works alone (lanes_bench).
Runs alternate within a round. Times of steps are medians after the warm-up steps, then medians over rounds.
The ratio to a peer is the median of the rounds' ratios.
"""
import os
import sys

from common import (Table, busy_seconds, find_torch, has_module, median, note, parser, plan, program, run_json,
                    train, work_directory, write_random_tokens)

LARGE = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "context": 1024}
# Peers: script, options, precisions, and the least ratio of our speed to theirs.
PEERS = {"eager PyTorch": ("torch_gpt2.py", [], ("fp32", "bf16"), 1.3),
         "compiled PyTorch": ("torch_gpt2.py", ["--compile"], ("fp32", "bf16"), 1.2),
         "DeepSpeed ZeRO-3 offload": ("deepspeed_gpt2.py", [], ("bf16",), 1.5)}
SMALL = {"layers": 4, "width": 256, "heads": 4, "vocab": 2048, "context": 64}


def parse():
    p = parser(__doc__)
    p.add_argument("--python", help="interpreter with PyTorch (default: this one, else /usr/bin/python3)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=6, help="steps of a run")
    p.add_argument("--warmup", type=int, default=2, help="steps of a run that do not count")
    p.add_argument("--precision", choices=["fp32", "bf16"], action="append",
                   help="precision to measure (default: both)")
    p.add_argument("--parts", default="torch,nvme",
                   help="comparisons beside that with the processor (default: torch,nvme)")
    o = p.parse_args()
    if not 0 < o.warmup < o.steps:
        p.error("--warmup must be from 1 to --steps - 1")
    o.precision = o.precision or ["fp32", "bf16"]
    o.parts = o.parts.split(",")
    o.shape, o.batch, o.seq = (SMALL, 4, 64) if o.small else (LARGE, 4, 256)
    if o.small:
        o.rounds, o.steps, o.warmup = 1, 3, 1
    o.tokens = o.batch * o.seq
    return o


class Benchmark:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.python = find_torch(options.python) if "torch" in options.parts else None
        self.peers = PEERS if self.python else {}
        if self.python and not has_module(self.python, "deepspeed"):
            note("DeepSpeed: not found; the comparison with it is left out. See tools/benchmarks/peers.txt.")
            self.peers = {name: peer for name, peer in PEERS.items() if not peer[0].startswith("deepspeed")}
        data = os.path.join(work, "tokens.bin")
        write_random_tokens(data, options.tokens * options.steps + 1, options.shape["vocab"])
        self.model = ["--model", "gpt2:" + ",".join(f"{k}={v}" for k, v in options.shape.items()),
                      "--batch", str(options.batch), "--seq", str(options.seq),
                      "--steps", str(options.steps), "--threads", str(options.threads)]
        self.data = ["--data", data]
        self.parameters = plan(options, self.model)["parameters"]
        self.seconds = {}  # by (precision, contestant): one figure for each round

    def add(self, precision, contestant, value):
        self.seconds.setdefault((precision, contestant), []).append(value)

    def peak(self):
        """GFLOP/s by precision; if the processor lacks bf16, the figure of fp32 stands for it."""
        half_size = 64 if self.options.small else 1024
        peaks = run_json([program(self.options, "matmul_bench"), str(self.options.threads), "5",
                          str(half_size), "--peak"])
        return {"fp32": peaks["fp32"], "bf16": peaks["bf16"] or peaks["fp32"]}

    def counted(self, steps):
        return steps[self.options.warmup:]

    def dram(self, precision):
        arguments = self.model + self.data + ["--precision", precision]
        steps = self.counted(train(self.options, arguments, self.work))
        self.add(precision, "dram", median(step["seconds"] for step in steps))

    def peer(self, precision, name):
        script, more, _, _ = self.peers[name]
        shape = [f"--{key}={value}" for key, value in self.options.shape.items()]
        run = run_json([self.python, os.path.join(os.path.dirname(__file__), script), *more, *shape,
                        f"--precision={precision}", f"--batch={self.options.batch}",
                        f"--seq={self.options.seq}", f"--steps={self.options.steps}",
                        f"--threads={self.options.threads}"])
        if run["parameters"] != self.parameters:
            sys.exit(f"{name}'s model has {run['parameters']} parameters, ours {self.parameters}.")
        self.add(precision, name, median(self.counted(run["seconds"])))

    def peers_of(self, precision):
        return [name for name, (_, _, precisions, _) in self.peers.items() if precision in precisions]

    def nvme(self, precision, budgets):
        arguments = self.model + self.data + budgets + ["--precision", precision]
        steps = self.counted(train(self.options, arguments, self.work))
        self.add(precision, "nvme", median(step["seconds"] for step in steps))
        self.add(precision, "busiest", max(busy_seconds(steps).values()))
        alone = run_json([program(self.options, "lanes_bench"), "train", "--out", "unused", *arguments])
        self.add(precision, "busiest alone", max(busy_seconds(self.counted(alone["steps"])).values()))

    def nvme_budgets(self, precision):
        """The largest host budget, in steps of 16 MiB, whose plan has weights and optimizer state on NVMe."""
        disk = 1024 if self.options.small else 8192  # MiB: at least 64 bytes a parameter, twice any plan

        def arguments(mib):
            return ["--host-mem", f"{mib}MiB", "--nvme-dir", self.work, "--nvme-mem", f"{disk}MiB"]

        def resident(mib):  # the part of their bytes that lives in memory; None: no plan fits
            facts = plan(self.options, self.model + arguments(mib) + ["--precision", precision])
            if not facts["feasible"]:
                return None
            homes = [facts["homes"][kind] for kind in ("weights", "state")]
            total = sum(size for home in homes for size in home.values())
            return 1 - sum(home["nvme"] for home in homes) / total

        def mostly_on_disk(mib):  # small tensors may fill the last free MiB of an arena
            return resident(mib) < 0.01

        low = 80  # MiB; more than 64 of them lie outside the arena
        while resident(low) is None:
            low += 16
        high = low
        while high < 65536 and mostly_on_disk(high):
            low, high = high, 2 * high
        while high - low > 16:
            middle = (low + high) // 2
            low, high = (middle, high) if mostly_on_disk(middle) else (low, middle)
        note(f"{precision} with its state on NVMe: --host-mem {low}MiB, {100 * resident(low):.1f} % of "
             "weights and state in memory")
        return arguments(low)

    def note_round(self, precision, head):
        latest = (f"{name} {values[-1]:.3g}" for (p, name), values in self.seconds.items() if p == precision)
        note(f"{head}, seconds: {', '.join(latest)}")

    def ratio(self, precision, over, under):
        """Median over rounds of the time of `over` divided by that of `under`."""
        pairs = zip(self.seconds[precision, over], self.seconds[precision, under])
        return median(a / b for a, b in pairs)

    def work_rate(self, seconds):
        return 6e-9 * self.parameters * self.options.tokens / seconds

    def compare(self, table, precision, peaks):
        measured = {name: median(values) for (p, name), values in self.seconds.items() if p == precision}
        tokens = self.options.tokens
        name = f"GPT-2 {self.parameters / 1e6:.3g}M {precision}"
        table.at_least(f"{name} in DRAM: model arithmetic / best large product",
                       self.work_rate(measured["dram"]), median(peak[precision] for peak in peaks),
                       {"fp32": 0.7, "bf16": 0.6}[precision], "GFLOP/s")
        for peer in self.peers_of(precision):
            rate = tokens / measured[peer]
            table.at_least(f"{name} in DRAM: speed / that of {peer}",
                           rate * self.ratio(precision, peer, "dram"), rate, self.peers[peer][3], "tokens/s")
        if "nvme" in measured:
            for lane, where in (("busiest", "busiest lane"), ("busiest alone", "busiest lane alone")):
                limit = max(1.3 * measured["dram"], 1.1 * measured[lane])
                table.at_most(f"{name} state on NVMe: step / max(1.3 x DRAM, 1.1 x {where})",
                              measured["nvme"], limit, 1, "s")
            note(f"{name} state on NVMe: {self.ratio(precision, 'nvme', 'dram'):.2f} x the DRAM step, "
                 f"{self.ratio(precision, 'nvme', 'busiest'):.2f} x the busiest lane, "
                 f"{self.ratio(precision, 'nvme', 'busiest alone'):.2f} x the busiest lane alone")


def main():
    options = parse()
    with work_directory(options) as work:
        bench = Benchmark(options, work)
        budgets = {}
        if "nvme" in options.parts:
            budgets = {precision: bench.nvme_budgets(precision) for precision in options.precision}
        peaks = []
        for index in range(options.rounds):
            peaks.append(bench.peak())
            for precision in options.precision:
                bench.dram(precision)
                for peer in bench.peers_of(precision):
                    bench.peer(precision, peer)
                if budgets:
                    bench.nvme(precision, budgets[precision])
                bench.note_round(precision, f"round {index + 1} of {options.rounds}, {precision}, "
                                            f"peak {peaks[-1][precision]:.0f} GFLOP/s")
        table = Table()
        for precision in options.precision:
            bench.compare(table, precision, peaks)
        table.print()


if __name__ == "__main__":
    main()
