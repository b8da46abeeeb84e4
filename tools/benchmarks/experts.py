#!/usr/bin/env python3
"""Speed of a mixture of experts against a dense model with the same flops a token, and with experts on a drive.

    python3 tools/benchmarks/experts.py [--rounds N] [--precision P]

A Mixtral of 8 experts, of which a token uses 2, and a Mistral whose feed-forward part is as wide as two
experts: 4 layers, 8192 tokens a step in micro-batches of 2048, about 512 rows an expert and micro-batch. All
three run in turn; medians of their steps but the first two count. With experts on the drive, host memory is
bounded so that weights, gradients and state of experts live there (--placement lowest).
"""
import os
import sys

from common import Table, median, note, parser, train, work_directory, write_random_tokens

WARM, STEPS = 2, 4
BATCH, MICRO_BATCH = 16, 4
BAR_DENSE = BAR_DRIVE = 0.8


def words(model, options, work, sequence, more):
    return ["--model", model, "--data", os.path.join(work, "tokens.bin"), "--precision", options.precision,
            "--batch", str(BATCH), "--micro-batch", str(MICRO_BATCH), "--seq", str(sequence),
            "--steps", str(WARM + STEPS), "--threads", str(options.threads)] + more


def main():
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=3, help="rounds of the three runs in turn (default: 3)")
    made.add_argument("--precision", default="bf16", help="bf16, fp16 or fp32 (default: bf16)")
    options = made.parse_args()
    width, expert, sequence = (128, 128, 64) if options.small else (768, 2048, 512)
    rounds = 1 if options.small else options.rounds
    heads = 4 if options.small else 12
    shape = f"layers=4,width={width},heads={heads},kv_heads={heads},vocab=1024,context={sequence}"
    mixture = f"mixtral:{shape},ffn={expert},experts=8,top=2"
    dense = f"mistral:{shape},ffn={2 * expert}"
    on_drive = ["--nvme-dir", options.dir, "--placement", "lowest"]
    table = Table()
    with work_directory(options) as work:
        write_random_tokens(os.path.join(work, "tokens.bin"), 400_000, 1024)
        runs = {"dense": words(dense, options, work, sequence, []),
                "experts in memory": words(mixture, options, work, sequence, []),
                "experts on the drive": words(mixture, options, work, sequence, on_drive)}
        seconds = {name: [] for name in runs}
        for _ in range(rounds):
            for name, arguments in runs.items():
                seconds[name] += [step["seconds"] for step in train(options, arguments, work)[WARM:]]
        tokens = BATCH * sequence
        speed = {name: tokens / median(times) for name, times in seconds.items()}
        for name, value in speed.items():
            note(f"{name:22}{value:10.0f} tokens/s")
        table.at_least("8 experts, 2 a token / dense of the same flops", speed["experts in memory"],
                       speed["dense"], BAR_DENSE, "tokens/s")
        table.at_least("experts on the drive / in memory", speed["experts on the drive"],
                       speed["experts in memory"], BAR_DRIVE, "tokens/s")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
