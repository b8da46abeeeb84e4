"""What the benchmark scripts share: running commands, reading their facts, and the table of ratios.

Needs only the standard library. A row compares a measurement with a limit or a peer of the same run; only
the bar is known beforehand.
"""
import argparse
import array
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

MACHINES = os.path.join(os.path.dirname(__file__), "..", "..", "engine", "rates", "machines")
SKIPPED = 4  # exit code when the machine lacks what the benchmark needs, as ExitCode::environment

median = statistics.median


class Table:
    """Rows of: what, measured, limit or peer, ratio, bar, and whether the bar is met."""

    def __init__(self):
        self.rows = []

    def at_least(self, what, measured, limit, bar, unit):
        self._add(what, measured, limit, unit, f">= {bar:g}", measured / limit >= bar)

    def at_most(self, what, measured, limit, bar, unit):
        self._add(what, measured, limit, unit, f"<= {bar:g}", measured / limit <= bar)

    def _add(self, what, measured, limit, unit, bar, met):
        self.rows.append((what, f"{measured:.4g} {unit}", f"{limit:.4g} {unit}", f"{measured / limit:.3f}",
                          bar, "ok" if met else "short"))

    def print(self):
        rows = [("what", "measured", "limit or peer", "ratio", "bar", "")] + self.rows
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        for row in rows:
            cells = [row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, 6)]
            print("  ".join(cells).rstrip())
        sys.stdout.flush()


def parser(description):
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--build", default="build/release",
                      help="folder of the commands (default: build/release)")
    made.add_argument("--dir", default=".",
                      help="directory on a drive, for data, runs and the nvme tier (default: .)")
    made.add_argument("--threads", type=int, default=os.cpu_count(),
                      help="threads of everything that is measured (default: all)")
    made.add_argument("--small", action="store_true", help="tiny sizes: only shows that the script works")
    return made


def program(options, name):
    path = os.path.join(options.build, name)
    if not os.path.exists(path):
        sys.exit(f"{path} does not exist. Build it with tools/build.sh release, or name its folder with "
                 "--build.")
    return path


def note(text):
    print(text, flush=True)


def print_predictions(rows, markdown):
    """Rows of cells, the heading first: as columns, or as a table of the docs."""
    if markdown:
        for row in [rows[0], ["---"] * len(rows[0])] + rows[1:]:
            note("| " + " | ".join(row) + " |")
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    note("Predictions from data sheets, not results.")
    for row in rows:
        note("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def run(command, allowed=(0,)):
    """Standard output of a command. If it fails, the script ends with its output."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode in allowed:
        return result.stdout
    sys.stderr.write(result.stdout[-2000:] + result.stderr[-2000:])
    sys.stderr.write(f"\nFailed with exit code {result.returncode}: {' '.join(command)}\n")
    sys.exit(SKIPPED if result.returncode == SKIPPED else 1)


def run_json(command, allowed=(0,)):
    return json.loads(run(command, allowed))


@contextlib.contextmanager
def work_directory(options):
    """A new folder in --dir, removed at the end."""
    path = tempfile.mkdtemp(prefix="sluice-benchmark-", dir=options.dir)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_random_tokens(path, count, vocabulary):
    """Writes nanoGPT's format: raw uint16."""
    source = random.Random(0)
    tokens = array.array("H", (source.randrange(min(vocabulary, 65536)) for _ in range(count)))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(path, "wb") as file:
        tokens.tofile(file)


def train(options, arguments, work, launcher=()):
    """Runs `sluice train` into a folder that is removed; returns its training steps from the metrics file."""
    out = os.path.join(work, "run")
    run([*launcher, program(options, "sluice"), "train", "--device", "cpu", "--out", out] + arguments)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    shutil.rmtree(out)
    return [step for step in steps if "seconds" in step]


def plan(options, arguments):
    """The facts of `sluice plan --json`, also if no plan fits (exit code 3)."""
    return run_json([program(options, "sluice"), "plan", "--device", "cpu", "--json"] + arguments, allowed=(0, 3))


def description_of(machine):
    """What a description of engine/rates/machines says."""
    with open(os.path.join(MACHINES, machine + ".json"), encoding="utf-8") as file:
        return json.load(file)


def busy_seconds(steps):
    """Median over steps of every lane's busy seconds."""
    return {lane: median(step["lane_busy"][lane] for step in steps) for lane in steps[0]["lane_busy"]}


def has_module(python, module):
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def find_torch(python):
    """An interpreter with PyTorch 2 or later: the one given, else this one or the system's; None after a message.

    Debian 12 has 1.13, whose AdamW is not fused: it is no peer.
    """
    probe = "import sys, torch; sys.exit(int(torch.__version__.split('.')[0]) < 2)"
    tried = [python] if python else [sys.executable, "/usr/bin/python3"]
    for candidate in tried:
        if shutil.which(candidate) and subprocess.run([candidate, "-c", probe], capture_output=True,
                                                      check=False).returncode == 0:
            return candidate
    note(f"PyTorch 2: not found by {' or '.join(tried)}; comparisons with it are left out. Add it with\n"
         "  python3 -m venv PEERS && PEERS/bin/pip install -r tools/benchmarks/peers.txt\n"
         "  and give --python PEERS/bin/python")
    return None
