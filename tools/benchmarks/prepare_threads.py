#!/usr/bin/env python3
"""How much faster chats are prepared by several threads than by one.

    python3 tools/benchmarks/prepare_threads.py [--mib N] [--rounds N]

The chats are made of the sources and documents of this repository, over and over, and the tokenizer is that of
the tests. Both ways are timed in turn, each into an empty cache; the fastest of each counts.
"""
import json
import os
import shutil
import sys
import time
from pathlib import Path

from common import Table, parser, program, run, work_directory

BAR = 0.85
ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "fixtures" / "fine_tuning" / "model"


def write_chats(path, size):
    """Each question is a name of a file, each answer a part of it."""
    sources = sorted(p for folder in ("docs", "engine", "models", "tools") for p in (ROOT / folder).rglob("*")
                     if p.suffix in (".md", ".h", ".cc"))
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            for source in sources:
                text = source.read_text(encoding="utf-8")
                for at in range(0, len(text), 2000):
                    messages = [{"role": "user", "content": f"{source.name} from {at}?"},
                                {"role": "assistant", "content": text[at:at + 2000]}]
                    written += file.write(json.dumps({"messages": messages}) + "\n")
                if written >= size:
                    break


def main():
    made = parser(__doc__)
    made.add_argument("--mib", type=int, default=64, help="MiB of chats (default: 64)")
    made.add_argument("--rounds", type=int, default=5, help="preparations of each kind (default: 5)")
    options = made.parse_args()
    threads = max(2, options.threads)
    size, rounds = (1, 1) if options.small else (options.mib, options.rounds)
    table = Table()
    with work_directory(options) as work:
        chats, cache = os.path.join(work, "chats.jsonl"), os.path.join(work, "cache")
        write_chats(chats, size << 20)
        seconds = {1: [], threads: []}
        for _ in range(rounds):
            for count, times in seconds.items():
                begin = time.perf_counter()
                run([program(options, "sluice"), "prepare", "--data", chats, "--tokenizer", str(MODEL),
                     "--cache", cache, "--threads", str(count)])
                times.append(time.perf_counter() - begin)
                shutil.rmtree(cache)
        one, several = (size / min(times) for times in seconds.values())
        table.at_least(f"{size} MiB of chats, {threads} threads / {threads} times one", several, one * threads, BAR,
                       "MiB/s")
    table.print()


if __name__ == "__main__":
    sys.exit(main())
