#!/usr/bin/env python3
"""Predictions for well-known machines beside published figures of other systems.

    python3 tools/benchmarks/predictions.py [--markdown]

Every row comes from `sluice plan --json` with a description of engine/rates/machines. Nothing is run or
measured, so these are predictions and not results. docs/predictions.md has the table, the sources, and
remarks. If the published machine has another host or other drives, these replace those of the description;
drives count at 80 % of their data sheets. TFLOP/s count 6 flops for each parameter and token, as if nothing
were computed twice. The second figure counts 8, as publications do if layers are computed again in backward.
A ratio is in the unit of the publication. A row without a published figure says so, and has no ratio.
"""
import json
import os
import sys

from common import description_of, parser, print_predictions, program, run_json, work_directory

# Intel D7-P5510, 3.84 TB: 6.5 GB/s reading, 3.4 writing. The rate of both together is a guess.
P5510 = {"tier": "nvme", "read": 5.2e9, "write": 2.7e9, "mixed": 3.6e9}


class Row:
    """published: tuples (figure, unit, of whom), a line each. The unit is "tokens/s", or for TFLOP/s the
    flops that are counted for each parameter and token: 6 or 8. host: the description whose pools and lane
    `optimizer` are taken."""

    def __init__(self, what, machine, model, batch, *published, sequence=1024, drives=None, host=None,
                 more=""):
        self.what, self.machine, self.model, self.published = what, machine, model, published
        self.batch, self.sequence, self.more = batch, sequence, more.split()
        self.drives, self.host = drives, host


GPT_4B = "gpt2:layers=78,width=2048,heads=16,context=1024"
GPT_10B = "gpt2:layers=50,width=4096,heads=32,context=1024"
GPT_13B = "gpt2:layers=40,width=5120,heads=40,context=1024"
GPT_20B = "gpt2:layers=25,width=8192,heads=64,context=1024"
GPT_40B = "gpt2:layers=50,width=8192,heads=64,context=1024"
GPT_65B = "gpt2:layers=80,width=8192,heads=64,context=1024"
GPT_120B = "gpt2:layers=96,width=10240,heads=80,context=1024"
GPT_175B = "gpt2:layers=96,width=12288,heads=96,context=2048"
QWEN_7B = "llama:layers=28,width=3584,heads=28,kv_heads=4,ffn=18944,vocab=152064,context=1024"

QWEN_14B = "llama:layers=48,width=5120,heads=40,kv_heads=8,ffn=13824,vocab=152064,context=1024"
TOKENS = "tokens/s"

ROWS = [
    Row("V100, 4B, fp32", "v100-dgx2", GPT_4B, 4, (232.6, TOKENS, "STRONGHOLD"),
        more="--precision fp32 --host-mem 90GB"),
    Row("V100, 10B", "v100-dgx2", GPT_10B, 10, (40, 8, "ZeRO-Offload")),
    Row("V100, 13B", "v100-dgx2", GPT_13B, 16),
    Row("V100, 40B", "v100-dgx2", GPT_40B, 16),
    *(Row(f"4090, 13B, {n} drive{'s'[:n > 1]}", "rtx-4090", GPT_13B, 32,
          *([(156, 8, "Fuyou"), (45, 8, "ZeRO-Infinity")] if n == 12 else []), drives=(P5510, n),
          host="a100-80gb", more="--host-mem 128GiB --clip 0") for n in (1, 2, 3, 6, 12)),
    Row("4090, 7B", "rtx-4090", QWEN_7B, 512, (2777, TOKENS, "LLMQ"), (2523, TOKENS, "ZeRO-3 offload"),
        more="--host-mem 256GiB --micro-batch 16"),
    Row("4090, 8B", "rtx-4090", "llama-8b", 32, (1790.9, TOKENS, "ZeRO-3 offload"), more="--host-mem 192GiB"),
    Row("4090, 14B", "rtx-4090", QWEN_14B, 512, (1349, TOKENS, "LLMQ"), (1135, TOKENS, "ZeRO-3 offload"),
        more="--host-mem 512GiB --micro-batch 32"),
    Row("A100, 20B", "a100-80gb", GPT_20B, 8, (43.1, 8, "Gemini"), more="--precision fp16"),
    Row("A100, 65B", "a100-80gb", GPT_65B, 64, more="--clip 0"),
    Row("A100, 175B", "a100-80gb", GPT_175B, 32, more="--clip 0", sequence=2048),
    Row("H100, 7B", "h100", QWEN_7B, 512, (13860, TOKENS, "LLMQ"), more="--micro-batch 4"),
    Row("H100, 7B", "h100", QWEN_7B, 158, (272, 6, "MegaTrain")),
    Row("H100, 14B", "h100", QWEN_14B, 512, (6320, TOKENS, "LLMQ"), more="--micro-batch 8"),
    Row("H200, 120B", "h200", GPT_120B, 64),
]
SMALL = "gpt2:layers=4,width=64,heads=4,vocab=256,context=32"


def machine_of(row, work):
    """The name of the description, or a file that has the host of another one, and other drives."""
    if row.drives is None:
        return row.machine
    (drive, count), description, host = row.drives, description_of(row.machine), description_of(row.host)
    description["name"] += f", the host of {row.host}, {count} x P5510"
    description["pools"] = host["pools"]
    description["lanes"] = [lane for lane in description["lanes"] if lane["lane"] != "optimizer"]
    description["lanes"] += [lane for lane in host["lanes"] if lane["lane"] == "optimizer"]
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


def lines_of(row, predicted):
    """A line for every published figure; a line without one if there is none."""
    common = [row.what, f"{row.batch} x {row.sequence}", f"{predicted['seconds']:.3g}",
              f"{predicted['tokens/s']:.0f}", f"{predicted[6]:.0f} / {predicted[8]:.0f}",
              f"{predicted['lane']} {100 * predicted['busy']:.0f} %"]
    if not row.published:
        return [common + ["not found", "-"]]
    return [common + [f"{figure:g} {unit if unit == TOKENS else f'TFLOP/s, {unit} flops'} ({whom})",
                      f"{predicted[unit] / figure:.2f}"] for figure, unit, whom in row.published]


HEADING = ["machine and model", "batch", "s a step", "tokens/s", "TFLOP/s, 6 / 8", "busiest lane",
           "published", "ratio"]


def main():
    made = parser(__doc__)
    made.add_argument("--markdown", action="store_true", help="print the table of docs/predictions.md")
    options = made.parse_args()
    rows = [HEADING]
    with work_directory(options) as work:
        for row in ROWS:
            if options.small:
                row.model, row.batch, row.sequence, row.more = SMALL, 4, 32, []
            rows.extend(lines_of(row, predict(options, row, work)))
    print_predictions(rows, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
