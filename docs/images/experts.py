#!/usr/bin/env python3
"""Draws experts.svg: the lanes of a measured step of a mixture of experts over time, coloured by expert.

Run in the repository root, with a folder on the drive that is to be used:
    python3 docs/images/experts.py FOLDER

All state lives on the drive, and host memory holds that of few experts at once. The drawing shows the fastest
step, as those of lanes.py do. Letters are many, so that tokens choose different experts.
"""
import pathlib
import re
import string
import sys
import tempfile

import lanes

EXPERTS = 4
MODEL = ("mixtral:layers=2,width=384,heads=6,kv_heads=6,ffn=1536,vocab=256,context=256,"
         f"experts={EXPERTS},top=2")
OPTIONS = ["--model", MODEL, "--precision", "bf16", "--host-mem", "160MiB", "--placement", "lowest",
           "--overlap", "never", "--recompute", "all", "--waves", "1"]
COLOURS = ("#e8b04a", "#5fb47c", "#c0504d", "#8a6fc0")
KINDS = {"layer": ("attention and router", ("#7fb0e6", "#7fb0e6")),
         **{f"expert {e}": (f"expert {e}", (COLOURS[e], COLOURS[e])) for e in range(EXPERTS)},
         "sum": ("sum of the experts", ("#1c2530", "#1c2530")),
         "rest": ("embedding and head", ("#c9d0d8", "#c9d0d8"))}


def part_of(position, parts):
    """Of what stands at this position: the embedding, then layers of so many parts, then the head."""
    layer, part = divmod(position - 1, len(parts))
    return parts[part] if 0 <= layer < 2 else "rest"


def kind_of(event):
    name = event["name"]
    experts = [f"expert {e}" for e in range(EXPERTS)]
    number = re.fullmatch(r"(\w+) (\d+)/\d+", name)
    if number and number[1] in ("forward", "backward"):
        return part_of(int(number[2]), ["layer", *experts, "sum"])
    if number and number[1] in ("round", "optimize"):
        return part_of(int(number[2]), ["layer", *experts])
    expert = re.search(r"experts\.(\d+)", name)
    if expert:
        return f"expert {expert[1]}"
    return ("layer" if "layers." in name else "rest") if event["cat"].startswith("nvme_") else None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        data = pathlib.Path(folder, "train.txt")
        lanes.write_text(data, string.ascii_letters)
        report = lanes.profile(OPTIONS, folder, str(data))
        lanes.write("experts", [lanes.panel("2 layers of 4 experts", report, kind_of, KINDS)], KINDS)


if __name__ == "__main__":
    main()
