#!/usr/bin/env python3
"""Draws updates.svg, waves.svg and levels.svg: the lanes of measured steps over time, one plan above another.

Run in the repository root. Trainings on this machine, with a folder on the drive that is to be used:
    python3 docs/images/lanes.py FOLDER
The reports of the two profiles of docs/measurements/h200.md, without and with guesses:
    python3 docs/images/lanes.py --updates NEVER AUTO

Each drawing compares profiles of the same training with other options. It shows the fastest step of each,
which other work on the machine disturbed least, from its first instruction to its last. Above it stands how
long it took, which is less where the next step begins before the last instruction.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
from html import escape

SLUICE = "build/release/sluice"
OUT = pathlib.Path("docs/images")
TRAINING = ["--batch", "8", "--micro-batch", "1", "--clip", "1000", "--seed", "1"]
SMALL = ["--model", "gpt2:layers=6,width=512,heads=8,vocab=256,context=256", "--precision", "bf16"]
LARGE = ["--model", "gpt2:layers=6,width=768,heads=12,vocab=256,context=512"]
STEPS = 15

WIDTH, LEFT, RIGHT, ROW, BAR = 1000, 110, 20, 26, 18
HIDDEN = 0.2  # a gap too narrow to be seen
INK, MUTED, LINE = "#1c2530", "#55606e", "#c9d0d8"
FONT = "font-family='Helvetica, Arial, sans-serif'"
KINDS = {  # of work: what it is called below the drawing, and its colours in turn, by layer
    "forward": ("forward", ("#7fb0e6", "#a9cbf0")),
    "backward": ("backward", ("#5fb47c", "#93d1a7")),
    "optimize": ("update that waits for the norm", ("#d98b2b", "#d98b2b")),
    "visit": ("visit: last step's update, this step's weights", ("#e8b04a", "#e8b04a")),
    "repair": ("repair", ("#c0504d", "#c0504d")),
    "round": ("rounded gradients", ("#8a6fc0", "#8a6fc0")),
    "nvme_read": ("read from the drive", ("#9aa5b1", "#9aa5b1")),
    "nvme_write": ("write to the drive", ("#6b7785", "#6b7785")),
}
DRAWINGS = {
    "waves": [(f"--waves {n}", SMALL + ["--host-mem", "640MiB", "--placement", "lowest", "--overlap", "never",
                                        "--waves", str(n)])
              for n in (1, 2, 8)],
    "levels": [(f"--recompute {level}", LARGE + ["--host-mem", "6GiB", "--recompute", level])
               for level in ("none", "cheap", "products", "all")],
}


def profile(options, folder, data):
    out = tempfile.mkdtemp(dir=folder)
    nvme = ["--nvme-dir", folder] if "--placement" in options else []
    command = [SLUICE, "profile", "--steps", str(STEPS), "--out", f"{out}/report", "--", *TRAINING,
               "--data", data, *options, *nvme]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pathlib.Path(out, "report")


def panel(title, report, *kinds):
    trace = json.loads((report / "trace.json").read_text(encoding="utf-8"))
    steps = json.loads((report / "profile.json").read_text(encoding="utf-8"))["steps"]
    seconds, step = min((s["seconds"]["measured"], number) for number, s in enumerate(steps, 1)
                        if not s["warms_up"])
    return title, seconds, *bars_of(trace["traceEvents"], step, *kinds)


def bars_of(events, step, kind_of=lambda event: event["cat"], kinds=KINDS):
    """(lane, kind, layer, wave, begin, end) of the step's instructions of these kinds, in milliseconds."""
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars, begun = [], {}
    for e in events:
        args = e.get("args", {})
        if e["ph"] == "X" and args.get("step") == step:
            number = e["name"].split()[-1].split("/")[0]
            bars.append((lanes[e["tid"]], kind_of(e), int(number) if number.isdigit() else 0, args["body"],
                         e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3))
        elif e["ph"] == "b" and args.get("step") == step:
            begun[(e["tid"], e["name"], e["id2"]["local"])] = e["ts"]
        elif e["ph"] == "e":
            begin = begun.pop((e["tid"], e["name"], e["id2"]["local"]), None)
            if begin is not None:
                bars.append((lanes[e["tid"]], kind_of(e), 0, "", begin / 1e3, e["ts"] / 1e3))
    start = min(b[4] for b in bars)
    return [(*b[:4], b[4] - start, b[5] - start) for b in bars if b[1] in kinds], list(lanes.values())


def joined(bars, gap):
    """Bars of a lane in order; those of one kind and layer that are less than `gap` apart are one."""
    out = []
    for lane, kind, layer, wave, begin, stop in sorted(bars, key=lambda bar: bar[4:]):
        if out and out[-1][1:4] == (kind, layer, wave) and begin - out[-1][5] < gap:
            begin = out.pop()[4]
        out.append((lane, kind, layer, wave, begin, stop))
    return out


def draw(panels, kinds=KINDS):
    """An SVG of (title, seconds of a step, bars, lanes) panels, all to the same scale."""
    longest = max(bar[5] for *_, bars, _ in panels for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    out, y, used = [], 12, []
    for title, seconds, bars, lanes in panels:
        out.append(f"<text x='{LEFT}' y='{y + 12}' font-size='14' fill='{INK}'>{escape(title)}: "
                   f"a step of {seconds:.2f} s</text>")
        y += 22
        for lane in lanes:
            mine = joined([bar for bar in bars if bar[0] == lane], HIDDEN / scale)
            if not mine:
                continue
            out.append(f"<text x='{LEFT - 10}' y='{y + 14}' font-size='12' text-anchor='end' "
                       f"fill='{MUTED}'>{escape(lane)}</text>")
            out.append(f"<line x1='{LEFT}' y1='{y + ROW - 3}' x2='{WIDTH - RIGHT}' y2='{y + ROW - 3}' "
                       f"stroke='{LINE}' stroke-width='0.5'/>")
            for _, kind, layer, _, begin, stop in mine:
                used.append(kind)
                out.append(f"<rect x='{LEFT + begin * scale:.2f}' y='{y + 2}' "
                           f"width='{max((stop - begin) * scale, 0.4):.2f}' height='{BAR}' "
                           f"fill='{kinds[kind][1][layer % 2]}'/>")
            y += ROW
        y += 14
    x = LEFT
    for kind, (words, colours) in kinds.items():
        if kind not in used:
            continue
        width = 34 + 6.6 * len(words)
        if x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 20
        out.append(f"<rect x='{x}' y='{y}' width='12' height='12' fill='{colours[0]}'/>")
        out.append(f"<text x='{x + 17}' y='{y + 10}' font-size='12' fill='{MUTED}'>{escape(words)}</text>")
        x += width
    height = y + 24
    return (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' {FONT}>\n"
            f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>\n" + "\n".join(out) + "\n</svg>\n")


def write(name, panels, kinds=KINDS):
    (OUT / f"{name}.svg").write_text(draw(panels, kinds), encoding="utf-8")


def write_text(path, letters="abcdefgh \n"):
    source = random.Random(1)
    path.write_text("".join(source.choice(letters) for _ in range(200_000)), encoding="utf-8")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--updates":
        return write("updates", [panel(f"--overlap {when}", pathlib.Path(report))
                                 for when, report in zip(("never", "auto"), sys.argv[2:])])
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        data = pathlib.Path(folder, "train.txt")
        write_text(data)
        for name, plans in DRAWINGS.items():
            write(name, [panel(title, profile(options, folder, str(data))) for title, options in plans])


if __name__ == "__main__":
    main()
