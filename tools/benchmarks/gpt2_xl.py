#!/usr/bin/env python3
"""GPT-2 XL (1.56 billion parameters) in 3 GiB of memory: 512 tokens a step, bf16, --clip 1, state on a drive.

    python3 tools/benchmarks/gpt2_xl.py --dir DIR

The step against the larger of two limits of the same run: how long lane compute is busy, and how long the
drive needs at least. The latter is computed from the bytes that the step reads and writes and from the rates
of fio (requests of 1 MiB, 16 in flight, as in the lanes). While both directions are under way, each has the
rate that fio reaches with a reader and a writer at once; once one direction is done, the other goes on at
the rate that it reaches alone. fio runs before and after the training, and medians count. The memory of the process is compared with
the budget. Needs fio, and 45 GB on the drive: state, gradients and a checkpoint.
"""
import json
import os
import shutil
import sys

from common import (SKIPPED, Table, busy_seconds, median, note, parser, plan, run, train, work_directory,
                    write_random_tokens)

GIB = 1 << 30
KINDS = {"read alone": ["read"], "write alone": ["write"], "both": ["read", "write"]}


def parse():
    p = parser(__doc__)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=1, help="steps that do not count")
    p.add_argument("--host-mem", default="3GiB")
    o = p.parse_args()
    if not 0 < o.warmup < o.steps:
        p.error("--warmup must be from 1 to --steps - 1")
    o.model, o.seq, o.disk = "gpt2-xl", 512, 45e9
    o.fio_bytes, o.fio_seconds, o.fio_rounds = 4 * GIB, 3, 2
    if o.small:
        o.model, o.seq, o.disk = "gpt2:layers=4,width=256,heads=4,vocab=2048,context=64", 64, 0.5e9
        o.host_mem, o.fio_bytes, o.fio_seconds, o.fio_rounds = "96MiB", GIB // 64, 0.2, 1
    return o


def check_disk(options, needed, why):
    free = shutil.disk_usage(options.dir).free
    if free < needed:
        note(f"{options.dir} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed ({why}).\n"
             "Free some, or name a directory on another drive with --dir.")
        sys.exit(SKIPPED)


def measure_disk(options, work, rates):
    """Appends GB/s of every kind and direction to rates, over two files that were written once before."""
    files = {way: os.path.join(work, f"fio-{way}") for way in ("read", "write")}
    common = ["fio", "--output-format=json", "--ioengine=io_uring", "--direct=1", "--bs=1M", "--iodepth=16",
              "--thread", f"--size={options.fio_bytes}"]

    def jobs(ways):
        return [word for way in ways for word in (f"--name={way}", f"--filename={files[way]}", f"--rw={way}")]

    run(common + ["--rw=write"] + [f"--{key}={files[way]}" for way in files for key in ("name", "filename")])
    timed = common + ["--time_based", f"--runtime={int(1e3 * options.fio_seconds)}ms"]
    for _ in range(options.fio_rounds):
        for kind, ways in KINDS.items():
            report = json.loads(run(timed + jobs(ways)))
            for job in report["jobs"]:
                way = job["jobname"]
                rates.setdefault((kind, way), []).append(job[way]["bw_bytes"] / 1e9)
    for path in files.values():
        os.unlink(path)


def disk_seconds(read, write, rates):
    """The least seconds for `read` and `write` GB: both at once until one is done, then the other alone."""
    together = min(read / rates["both", "read"], write / rates["both", "write"])
    rest_read = read - together * rates["both", "read"]
    rest_write = write - together * rates["both", "write"]
    return together + rest_read / rates["read alone", "read"] + rest_write / rates["write alone", "write"]


def main():
    options = parse()
    if not shutil.which("fio"):
        note("fio is not installed. Add it with: apt-get install --no-install-recommends fio")
        sys.exit(SKIPPED)
    check_disk(options, options.disk, "state, gradients and a checkpoint")
    with work_directory(options) as work:
        data = os.path.join(work, "tokens.bin")
        write_random_tokens(data, options.seq * options.steps + 1, 512)
        arguments = ["--model", options.model, "--batch", "1", "--seq", str(options.seq),
                     "--precision", "bf16", "--clip", "1", "--host-mem", options.host_mem, "--nvme-dir", work,
                     "--steps", str(options.steps), "--threads", str(options.threads)]
        facts = plan(options, arguments)
        if not facts["feasible"]:
            sys.exit(facts["reason"])
        check_disk(options, facts["arenas"]["nvme"] + facts["checkpoint_bytes"], "by the plan")
        note(f"{options.model}: {options.steps} steps, predicted {facts['seconds_predicted']:.2g} s each; "
             "before them the state is written once, after them a checkpoint")
        samples = {}
        measure_disk(options, work, samples)
        steps = train(options, arguments + ["--data", data], work)
        measure_disk(options, work, samples)
        report(options, facts, steps, {key: median(values) for key, values in samples.items()})


def report(options, facts, steps, rates):
    for (kind, way), rate in rates.items():
        note(f"drive, {kind}: {way} {rate:.2f} GB/s")
    counted = steps[options.warmup:]
    seconds = median(step["seconds"] for step in counted)
    busy = busy_seconds(counted)
    moved = {way: median(step["moved_bytes"]["nvme_" + way] for step in counted) / 1e9
             for way in ("read", "write")}
    disk = disk_seconds(moved["read"], moved["write"], rates)
    apart = moved["read"] / rates["read alone", "read"] + moved["write"] / rates["write alone", "write"]
    note(f"{facts['parameters'] / 1e9:.3g} billion parameters, {facts['arenas']['nvme'] / 1e9:.1f} GB on "
         f"the drive, {facts['arenas']['host'] / GIB:.2f} GiB of host arena")
    note(f"a step reads {moved['read']:.1f} GB and writes {moved['write']:.1f} GB")
    note(f"step {seconds:.2f} s, predicted {facts['seconds_predicted']:.2f} s")
    note("busy: " + ", ".join(f"{lane} {value:.2f} s" for lane, value in busy.items() if value > 0))
    note(f"drive: {disk:.2f} s with reads and writes at once, {apart:.2f} s if they took turns")
    table = Table()
    limit = "compute lane" if busy["compute"] > disk else "drive"
    table.at_most(f"{options.model} step / max(compute lane, drive), here the {limit}", seconds,
                  max(busy["compute"], disk), 1.25, "s")
    budget = facts["budgets"]["host"]
    table.at_most(f"{options.model} peak of the process / --host-mem",
                  max(step["process_peak_bytes"] for step in steps) / GIB, budget / GIB, 1, "GiB")
    table.print()


if __name__ == "__main__":
    main()
