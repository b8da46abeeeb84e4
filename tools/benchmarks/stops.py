#!/usr/bin/env python3
"""How long a stop takes, against what the training answers when it is asked to stop.

    python3 tools/benchmarks/stops.py [--stops N] [--busy PROCESSES]

Trains a model on a machine that other processes keep busy, sends SIGTERM at a random moment after the first
steps, and compares the time that the training says it needs with the time until it has ended. The bar: within
20 % of the time, or 2 s.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from common import Table, parser, program, work_directory, write_random_tokens

PART, SECONDS = 0.2, 2
LARGE = ["--model", "gpt2:layers=8,width=640,heads=10,vocab=8192,context=256", "--seq", "256"]
SMALL = ["--model", "gpt2:layers=2,width=64,heads=2,vocab=256,context=64", "--seq", "64"]
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}


def steps_done(out):
    path = os.path.join(out, "metrics.jsonl")
    if not os.path.exists(path):
        return 0
    with open(path, encoding="utf-8") as file:
        return sum(1 for line in file if line.endswith("\n") and "seconds" in json.loads(line))


def stop_once(options, words, work, source, number):
    """Seconds that the training said, and that it took."""
    out = os.path.join(work, f"run{number}")
    command = [program(options, "sluice"), "train", "--device", "cpu", "--out", out, "--steps", "100000",
               "--threads", str(options.threads), *words]
    steps = source.randrange(2, 7)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        while process.poll() is None and steps_done(out) < steps:
            time.sleep(0.05)
        time.sleep(source.random() * 3)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait()
        took = time.monotonic() - asked
        said.seek(0)
        text = said.read()
    answer = re.search(r"That takes about ([0-9.]+) ([a-zµ]+)", text)
    if code != 75 or not answer:
        sys.exit(f"The training did not stop as asked: exit code {code}.\n{text[-2000:]}")
    return float(answer[1]) * UNITS[answer[2]], took


def main():
    made = parser(__doc__)
    made.add_argument("--stops", type=int, default=20, help="trainings that are stopped (default: 20)")
    made.add_argument("--busy", type=int, default=1, help="processes that compute beside them (default: 1)")
    options = made.parse_args()
    table, source = Table(), random.Random(1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        with work_directory(options) as work:
            data = os.path.join(work, "tokens.bin")
            write_random_tokens(data, 20_000, 256)
            for number in range(2 if options.small else options.stops):
                batch = source.choice((2, 4, 8))
                words = (SMALL if options.small else LARGE) + ["--batch", str(batch), "--data", data]
                said, took = stop_once(options, words, work, source, number)
                table.at_most(f"stop {number + 1}, batch {batch}: said {said:.2f} s, took {took:.2f} s",
                              abs(said - took), max(PART * took, SECONDS), 1, "s")
    finally:
        for process in busy:
            process.kill()
    table.print()


if __name__ == "__main__":
    main()
