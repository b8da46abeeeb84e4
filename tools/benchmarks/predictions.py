#!/usr/bin/env python3
"""What is predicted for well-known machines, beside what other systems have published for them.

    python3 tools/benchmarks/predictions.py [--markdown]

For every row, `sluice plan --json` on a description of engine/machines; nothing is run and no machine is
measured, so these are predictions and not results. docs/predictions.md has the table, the sources, and what
to think of it. Where the published machine has other drives, their data-sheet rates replace those of the
description, at its 80 %. TFLOP/s count 6 flops a parameter and token, as if nothing were computed twice; the
second figure counts 8, as most publications do that compute layers again in backward. Without a figure that
we could find, a row says so, and has no ratio.
"""
import json
import os
import sys

from common import note, parser, program, run_json, work_directory

MACHINES = os.path.join(os.path.dirname(__file__), "..", "..", "engine", "machines")
# Intel D7-P5510, 3.84 TB: 6.5 GB/s reading, 3.4 writing; both together is not published, and a guess.
P5510 = {"tier": "nvme", "read": 5.2e9, "write": 2.7e9, "mixed": 3.6e9}
NOT_FOUND = None


class Row:
    """published: (figure, unit, of whom); unit: "tokens/s", or TFLOP/s with 6 or 8 flops."""

    def __init__(self, what, machine, model, batch, sequence, published=NOT_FOUND, drives=None, more=()):
        self.what, self.machine, self.model, self.batch, self.sequence = what, machine, model, batch, sequence
        self.published, self.drives, self.more = published, drives, list(more)


GPT_10B = "gpt2:layers=50,width=4096,heads=32,context=1024"
GPT_13B = "gpt2:layers=40,width=5120,heads=40,context=1024"
GPT_40B = "gpt2:layers=50,width=8192,heads=64,context=1024"
GPT_65B = "gpt2:layers=80,width=8192,heads=64,context=1024"
GPT_120B = "gpt2:layers=96,width=10240,heads=80,context=1024"
GPT_175B = "gpt2:layers=96,width=12288,heads=96,context=2048"
QWEN_7B = "llama:layers=28,width=3584,heads=28,kv_heads=4,ffn=18944,vocab=152064,context=1024"

ROWS = [
    Row("V100, 10B", "v100-dgx2", GPT_10B, 10, 1024, (40, 8, "ZeRO-Offload")),
    Row("V100, 13B", "v100-dgx2", GPT_13B, 16, 1024),
    Row("V100, 40B", "v100-dgx2", GPT_40B, 16, 1024),
    *(Row(f"4090, 13B, {n} drive{'s'[:n > 1]}", "rtx-4090", GPT_13B, 32, 1024,
          (156, 8, "Fuyou") if n == 12 else NOT_FOUND, (P5510, n),
          ["--host-mem", "128GiB", "--clip", "0"]) for n in (1, 2, 3, 6, 12)),
    Row("4090, 7B", "rtx-4090", QWEN_7B, 256, 1024, (1900, "tokens/s", "LLMQ"), None,
        ["--host-mem", "128GiB"]),
    Row("A100, 65B", "a100-80gb", GPT_65B, 64, 1024, NOT_FOUND, None, ["--clip", "0"]),
    Row("A100, 175B", "a100-80gb", GPT_175B, 32, 2048, NOT_FOUND, None, ["--clip", "0"]),
    Row("H100, 7B", "h100", QWEN_7B, 256, 1024, (14000, "tokens/s", "LLMQ")),
    Row("H100, 7B", "h100", QWEN_7B, 256, 1024, (272, 8, "MegaTrain")),
    Row("H200, 120B", "h200", GPT_120B, 64, 1024),
]
SMALL = "gpt2:layers=4,width=64,heads=4,vocab=256,context=32"


def machine_of(row, work):
    """The description's name, or a file with other drives."""
    if row.drives is None:
        return row.machine
    drive, count = row.drives
    with open(os.path.join(MACHINES, row.machine + ".json"), encoding="utf-8") as file:
        description = json.load(file)
    description["name"] += f" with {count} x P5510"
    description["drives"] = [drive] * count
    description["memory"]["nvme"] = 3.84e12 * count
    path = os.path.join(work, f"{row.machine}-{count}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(description, file)
    return path


def predict(options, row, work):
    facts = run_json([program(options, "sluice"), "plan", "--json", "--machine", machine_of(row, work),
                      "--model", row.model, "--batch", str(row.batch), "--seq", str(row.sequence)] + row.more)
    seconds, tokens = facts["seconds_predicted"], row.batch * row.sequence
    tera = facts["parameters"] * tokens / seconds / 1e12
    lane, busy = max(facts["lane_busy"].items(), key=lambda item: item[1])
    return {"seconds": seconds, "tokens/s": tokens / seconds, 6: 6 * tera, 8: 8 * tera, "lane": lane,
            "busy": busy / seconds, "parameters": facts["parameters"]}


def cells(row, predicted):
    published, ratio = "not found", "-"
    if row.published is not NOT_FOUND:
        figure, unit, whom = row.published
        published = f"{figure:g} {unit if unit == 'tokens/s' else 'TFLOP/s'} ({whom})"
        ratio = f"{predicted[unit] / figure:.2f}"
    return [row.what, f"{row.batch} x {row.sequence}", f"{predicted['seconds']:.3g}",
            f"{predicted['tokens/s']:.0f}", f"{predicted[6]:.0f} / {predicted[8]:.0f}",
            f"{predicted['lane']} {100 * predicted['busy']:.0f} %", published, ratio]


HEADING = ["machine and model", "batch", "s a step", "tokens/s", "TFLOP/s, 6 / 8", "busiest lane",
           "published", "ratio"]


def main():
    made = parser(__doc__)
    made.add_argument("--markdown", action="store_true", help="as docs/predictions.md has it")
    options = made.parse_args()
    rows = [HEADING]
    with work_directory(options) as work:
        for row in ROWS:
            if options.small:
                row.model, row.batch, row.sequence = SMALL, 4, 32
            rows.append(cells(row, predict(options, row, work)))
    if options.markdown:
        rows.insert(1, ["---"] * len(HEADING))
        for line in rows:
            note("| " + " | ".join(line) + " |")
        return
    widths = [max(len(line[i]) for line in rows) for i in range(len(HEADING))]
    note("Predictions from data sheets, not results.")
    for line in rows:
        note("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
