#!/usr/bin/env python3
"""Draws docs/images/architecture.svg: passes, tiers with their lanes, and rooms.

Run in the repository root:
    python3 docs/images/architecture.py > docs/images/architecture.svg

Rooms are those of tests/structure_test.cc, in their order. A room that no row here expects is an error.
"""

import re
import sys
from html import escape

WIDTH = 1000
MARGIN = 20
INK, MUTED, LINE, PAPER = "#1c2530", "#55606e", "#7b8794", "#ffffff"
BLUE, GREEN, AMBER, ROSE, GREY = "#dce9f9", "#dcf2e2", "#fcefd2", "#f9e0e0", "#eef1f4"
SANS = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'"

# Title, room, what comes out of it.
PASSES = [
    ("model", "models/families", ("segments,", "parameter groups"), GREY),
    ("lowering", "engine/plan/lower", ("tasks, buffers,", "versions"), BLUE),
    ("homes", "engine/plan/search", ("a home for each", "permanent buffer"), BLUE),
    ("staging", "engine/plan/stage", ("transfers, and", "all addresses"), BLUE),
    ("waits", "engine/plan/assemble", ("all waits: now it", "is a program"), BLUE),
    ("verifier", "engine/verify", ("correct, or the", "instruction at fault"), ROSE),
    ("executor", "engine/run/execute", ("one thread a lane,", "and the trace"), GREEN),
]
SIMULATOR = "engine/simulate"

# From the ground up: a caption, and the folders whose rooms stand in the row.
ROWS = [
    ("ground", ("engine/base", "engine/graph", "engine/program"), GREY),
    ("judges", ("engine/verify", "engine/rates", "engine/simulate"), ROSE),
    ("planner", ("engine/plan",), BLUE),
    ("what a step uses", ("cpu_optim", "offload", "gpu", "models"), AMBER),
    ("runs", ("engine/run", "engine/profile"), GREEN),
    ("command", ("tools",), GREY),
    ("tests", ("tests",), GREY),
]


def read_rooms(path):
    """Paths of rooms without the last slash, in the order of the test's list."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    table = re.search(r"return std::vector<Room>\{(.*?)\n    \};", text, re.S)
    if not table:
        sys.exit(f"{path}: no list of rooms")
    return [room.rstrip("/") for room in re.findall(r'^\s*\{"([^"]+/)"', table.group(1), re.M)]


def rooms_by_row(rooms):
    rows = [[] for _ in ROWS]
    latest = 0
    for room in rooms:
        found = [n for n, (_, folders, _) in enumerate(ROWS)
                 if any(room == f or room.startswith(f + "/") for f in folders)]
        if len(found) != 1 or found[0] < latest:
            sys.exit(f"room {room} has no row of its own in order: mend ROWS")
        latest = found[0]
        rows[latest].append(room)
    for _, room, _, _ in PASSES:
        if room not in rooms:
            sys.exit(f"pass in {room}, which is no room: mend PASSES")
    if SIMULATOR not in rooms:
        sys.exit(f"{SIMULATOR} is no room")
    return rows


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, size=12, anchor="start", fill=INK, font=SANS, weight="normal"):
        self.parts.append(f"<text x='{x}' y='{y}' font-size='{size}' text-anchor='{anchor}' fill='{fill}' "
                          f"font-weight='{weight}' {font}>{escape(words)}</text>")

    def box(self, x, y, width, height, fill, stroke=LINE, radius=5, dash=""):
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='{radius}' "
                          f"fill='{fill}' stroke='{stroke}'{dashes}/>")

    def arrow(self, points, dash=""):
        dashes = f" stroke-dasharray='{dash}'" if dash else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(f"<polyline points='{path}' fill='none' stroke='{INK}' stroke-width='1.4' "
                          f"marker-end='url(#head)'{dashes}/>")

    def number(self, x, y, n):
        self.parts.append(f"<circle cx='{x}' cy='{y}' r='9' fill='{INK}'/>")
        self.text(x, y + 4, str(n), 12, "middle", PAPER, weight="bold")

    def heading(self, y, words, more):
        self.text(MARGIN, y, words, 16, weight="bold")
        self.text(WIDTH - MARGIN, y, more, 12, "end", MUTED)

    def svg(self, height):
        head = (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
                f"height='{height}' role='img' aria-label='Passes, tiers with lanes, and rooms of Sluice'>\n"
                "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
                "markerHeight='7' orient='auto'>"
                f"<path d='M0,0 L10,5 L0,10 z' fill='{INK}'/></marker></defs>\n"
                f"<rect width='{WIDTH}' height='{height}' fill='{PAPER}'/>\n")
        return head + "\n".join(self.parts) + "\n</svg>\n"


def draw_passes(d, top):
    d.heading(top + 16, "From a model to a program that runs", "each pass, its room, and what it makes")
    width, gap, height, y = 122, 17, 82, top + 32
    left = [MARGIN + n * (width + gap) + 1 for n in range(len(PASSES))]
    for x, (title, room, made, fill) in zip(left, PASSES):
        d.box(x, y, width, height, fill)
        d.text(x + width / 2, y + 20, title, 14, "middle", weight="bold")
        d.text(x + width / 2, y + 37, room, 9.5, "middle", MUTED, MONO)
        for n, words in enumerate(made):
            d.text(x + width / 2, y + 56 + 15 * n, words, 11.5, "middle")
    for x in left[1:]:
        d.arrow([(x - gap, y + height / 2), (x - 1, y + height / 2)])
    # The search: what was assembled is simulated, and the next candidate has other homes.
    begin, end, below = left[2], left[4] + width, y + height + 24
    d.box(begin + 70, below, end - begin - 140, 40, ROSE)
    middle = (begin + end) / 2
    d.text(middle, below + 17, "simulator: how long is a step?", 12, "middle", weight="bold")
    d.text(middle, below + 32, SIMULATOR, 9.5, "middle", MUTED, MONO)
    d.arrow([(end - 40, y + height), (end - 40, below + 20), (end - 71, below + 20)])
    d.arrow([(begin + 70, below + 20), (begin + 40, below + 20), (begin + 40, y + height + 1)])
    d.text(begin + 30, below + 17, "search: the next", 11.5, "end", MUTED)
    d.text(begin + 30, below + 32, "candidate", 11.5, "end", MUTED)
    d.text(end - 28, below + 17, "the fastest candidate goes on", 11.5, "start", MUTED)
    d.text(end - 28, below + 32, "to the verifier", 11.5, "start", MUTED)
    return below + 40


def draw_tiers(d, top):
    d.heading(top + 16, "Tiers, and the lanes that work in them and between them",
              "1 to 5: the weights of layer h.1 in a step")
    height, gap, y = 74, 62, top + 32
    tiers = [("device", "where segments run", BLUE), ("host", "memory of the processor", GREEN),
             ("nvme", "files on drives", AMBER)]
    tops = [y + n * (height + gap) for n in range(3)]
    for t, (name, what, fill) in zip(tops, tiers):
        d.box(MARGIN, t, WIDTH - 2 * MARGIN, height, fill, radius=8)
        d.text(MARGIN + 16, t + 33, name, 16, weight="bold")
        d.text(MARGIN + 16, t + 53, what, 12, fill=MUTED)

    def lane(x, t, width, name, words):
        d.box(x, t + 13, width, height - 26, PAPER, INK)
        d.text(x + 12, t + 33, name, 12.5, font=MONO, weight="bold")
        d.text(x + 12, t + 50, words, 11.5, fill=MUTED)

    def copies(x, t, width, title, names):
        d.box(x, t + 13, width, height - 26, PAPER, LINE, dash="4 3")
        d.text(x + 12, t + 33, title, 11.5, fill=MUTED)
        d.text(x + 12, t + 50, names, 12, font=MONO)

    lane(215, tops[0], 265, "compute", "forward, backward, round")
    d.number(480, tops[0] + height / 2, 5)
    copies(515, tops[0], 445, "staged copy", "w.h.1")
    lane(215, tops[1], 145, "optimizer", "optimize, norm")
    d.number(360, tops[1] + height / 2, 2)
    lane(376, tops[1], 104, "collective", "several ranks")
    copies(515, tops[1], 445, "staged copies", "s.h.1.0  g.h.1  w.h.1")
    copies(515, tops[2], 445, "homes", "s.h.1.0  g.h.1  w.h.1")

    def link(x, upper, up, name, what, number=None):
        a, b = tops[upper] + height, tops[upper + 1]
        d.arrow([(x, b), (x, a + 1)] if up else [(x, a), (x, b - 1)])
        shift = 12
        if number:
            d.number(x + 19, a + gap / 2, number)
            shift = 36
        d.text(x + shift, a + gap / 2 - 3, name, 12.5, font=MONO, weight="bold")
        d.text(x + shift, a + gap / 2 + 13, what, 11.5, fill=MUTED)

    link(540, 0, True, "h2d", "the new weights", 4)
    link(740, 0, False, "d2h", "gradients, activations")
    link(540, 1, True, "nvme_read", "state and gradient", 1)
    link(740, 1, False, "nvme_write", "state and weights, updated", 3)
    return tops[2] + height


def draw_rooms(d, top, rows):
    d.heading(top + 16, "Rooms", "a room includes itself and rooms below it or to its left; some see fewer")
    left, chip_height, gap, size = 162, 25, 7, 11.5
    lines = []  # from the ground up: (caption, colour, rooms of one line)
    for (caption, _, fill), rooms in zip(ROWS, rows):
        line, x = [], left
        for room in rooms:
            width = round(len(room) * size * 0.605) + 14
            if x + width > WIDTH - MARGIN and line:
                lines.append(("", fill, line))
                line, x = [], left
            line.append((x, width, room))
            x += width + gap
        lines.append((caption, fill, line))
    y = top + 32
    for caption, fill, line in reversed(lines):
        d.text(MARGIN, y + 17, caption, 12.5, weight="bold")
        for x, width, room in line:
            d.box(x, y, width, chip_height, fill)
            d.text(x + width / 2, y + 17, room, size, "middle", font=MONO)
        y += chip_height + 8
    return y


def main():
    rows = rooms_by_row(read_rooms("tests/structure_test.cc"))
    d = Drawing()
    y = draw_passes(d, 12)
    y = draw_tiers(d, y + 26)
    y = draw_rooms(d, y + 26, rows)
    sys.stdout.write(d.svg(y + 12))


if __name__ == "__main__":
    main()
