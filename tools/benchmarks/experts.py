#!/usr/bin/env python3
"""Speed of a mixture of experts against a dense model with the same flops a token, with experts on a drive,
and against transformers.

    python3 tools/benchmarks/experts.py [--rounds N] [--precision P] [--dir DIR]
                                        [--python PYTHON_WITH_TRANSFORMERS]

A Mixtral of 8 experts, of which a token uses 2, and a Mistral whose feed-forward part is as wide as two
experts: 4 layers, 8192 tokens a step. Both run with micro-batches of 1024, 2048 and 4096 tokens, which are
about 256, 512 and 1024 rows an expert and micro-batch. With experts on the drive, all that can live there
does (--placement lowest), and a step has 32768 tokens, with which compute takes longer than the drive does;
the same step with experts in memory is what it is compared with. transformers' Mixtral (torch_mixtral.py)
runs in each way that it has of computing experts, by itself and compiled, and in each of these micro-batches,
and the fastest counts.
All run in turn; medians of their steps but the first two count.
"""
import os
import sys

from common import (Table, find_torch, has_module, median, note, parser, run_json, train, work_directory,
                    write_random_tokens)

WARM, STEPS = 2, 4
BATCH, MICRO_BATCHES = 16, (2, 4, 8)
LARGE_BATCH = 64
EXPERTS, TOP = 8, 2
LAYERS, VOCABULARY = 4, 1024
PEER_WAYS = (("eager", False), ("grouped_mm", False), ("grouped_mm", True))  # experts_implementation, compiled
BAR_DENSE = BAR_DRIVE = 0.8
BAR_PEER = 1.3


class Benchmark:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.width, self.expert, self.sequence = (128, 128, 64) if options.small else (768, 2048, 512)
        self.heads = 4 if options.small else 12
        shape = (f"layers={LAYERS},width={self.width},heads={self.heads},kv_heads={self.heads},vocab={VOCABULARY},"
                 f"context={self.sequence}")
        self.mixture = f"mixtral:{shape},ffn={self.expert},experts={EXPERTS},top={TOP}"
        self.dense = f"mistral:{shape},ffn={TOP * self.expert}"
        write_random_tokens(os.path.join(work, "tokens.bin"), 400_000, VOCABULARY)
        self.python = find_torch(options.python)
        if self.python and not has_module(self.python, "transformers"):
            note("transformers: not found; the comparison with it is left out. See tools/benchmarks/peers.txt.")
            self.python = None
        self.seconds = {}  # by contestant and micro-batch: of all rounds' steps

    def add(self, name, micro_batch, seconds):
        self.seconds.setdefault((name, micro_batch), []).extend(seconds[WARM:])

    def ours(self, name, model, micro_batch, batch=BATCH, more=()):
        words = ["--model", model, "--data", os.path.join(self.work, "tokens.bin"), "--precision",
                 self.options.precision, "--batch", str(batch), "--micro-batch", str(micro_batch), "--seq",
                 str(self.sequence), "--steps", str(WARM + STEPS), "--threads", str(self.options.threads), *more]
        self.add(name, micro_batch, [step["seconds"] for step in train(self.options, words, self.work)])

    def peer(self, way, micro_batch):
        implementation, compiled = way
        run = run_json([self.python, os.path.join(os.path.dirname(__file__), "torch_mixtral.py"),
                        f"--precision={self.options.precision}", f"--experts={implementation}", f"--batch={BATCH}",
                        f"--micro-batch={micro_batch}", f"--seq={self.sequence}", f"--width={self.width}",
                        f"--heads={self.heads}", f"--ffn={self.expert}", f"--layers={LAYERS}",
                        f"--vocab={VOCABULARY}", f"--experts-count={EXPERTS}", f"--top={TOP}",
                        f"--steps={WARM + STEPS}", f"--threads={self.options.threads}",
                        *(["--compile"] if compiled else [])])
        self.add(f"transformers, {implementation}{', compiled' if compiled else ''}", micro_batch, run["seconds"])

    def round(self):
        for micro_batch in MICRO_BATCHES:
            self.ours("dense", self.dense, micro_batch)
            self.ours("experts", self.mixture, micro_batch)
            for way in PEER_WAYS if self.python else ():
                self.peer(way, micro_batch)
        on_drive = ["--nvme-dir", self.options.dir, "--placement", "lowest"]
        self.ours("experts, large step", self.mixture, MICRO_BATCHES[-1], LARGE_BATCH)
        self.ours("experts on the drive", self.mixture, MICRO_BATCHES[-1], LARGE_BATCH, on_drive)

    def speed(self, name, micro_batch):
        batch = LARGE_BATCH if name in ("experts, large step", "experts on the drive") else BATCH
        return batch * self.sequence / median(self.seconds[name, micro_batch])

    def compare(self):
        for name, micro_batch in self.seconds:
            note(f"{name:38}micro-batch {micro_batch}{self.speed(name, micro_batch):10.0f} tokens/s")
        table = Table()
        for micro_batch in MICRO_BATCHES:
            rows = micro_batch * self.sequence * TOP // EXPERTS
            table.at_least(f"{EXPERTS} experts, {TOP} a token, {rows} rows an expert / dense of the same flops",
                           self.speed("experts", micro_batch), self.speed("dense", micro_batch), BAR_DENSE,
                           "tokens/s")
        last = MICRO_BATCHES[-1]
        table.at_least("experts on the drive / in memory", self.speed("experts on the drive", last),
                       self.speed("experts, large step", last), BAR_DRIVE, "tokens/s")
        peers = [self.speed(*key) for key in self.seconds if key[0].startswith("transformers")]
        if peers:
            table.at_least("experts / transformers' fastest way", self.speed("experts", last), max(peers),
                           BAR_PEER, "tokens/s")
        table.print()


def main():
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=3, help="rounds of all runs in turn (default: 3)")
    made.add_argument("--precision", default="bf16", choices=["fp32", "bf16"], help="(default: bf16)")
    made.add_argument("--python", help="interpreter with PyTorch and transformers (default: this one)")
    options = made.parse_args()
    with work_directory(options) as work:
        bench = Benchmark(options, work)
        for _ in range(1 if options.small else options.rounds):
            bench.round()
        bench.compare()


if __name__ == "__main__":
    sys.exit(main())
