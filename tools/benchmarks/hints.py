#!/usr/bin/env python3
"""Whether what `sluice plan` advises is accepted when it is typed, and keeps its promise.

    python3 tools/benchmarks/hints.py [--only NAMES]

Plans 30 requests: dense models, experts and adapters, on 1 to 80 ranks of ten machines, some with budgets
that cannot work. Types every option that a `faster` line or a refusal names, alone, and all of `The least
together`. Each must be accepted, and reach the tokens a second that its line promises within 5 %. It needs no
GPU, and some minutes for each request.
"""
import re
import subprocess
import sys

from common import Table, note, parser, program

WITHIN = 0.05
REQUESTS = [line.split() for line in """
llama-8b rtx-4090
llama-8b rtx-4090 --lora 16
llama-8b rtx-4090 --seq 2048 --batch 1
llama-8b rtx-4090 --gpu-mem 8GiB
llama-8b rtx-4090 --gpu-mem 1500MiB
llama-13b rtx-4090-4nvme --seq 1024
llama-13b rtx-4090 --host-mem 16GiB --nvme-mem 100GiB
llama-70b rtx-4090 --host-mem 64GiB --seq 2048
llama-70b rtx-4090 --lora 64 --seq 2048
llama-70b h200 --seq 4096
llama-70b h100-cluster --ranks 16 --seq 2048 --batch 64
llama-13b a100-cluster --ranks 80 --seq 1024 --batch 160
llama-13b a100-cluster --ranks 8 --seq 1024 --batch 8 --recompute all
llama-405b rtx-4090 --seq 2048
llama-405b h100-x8 --ranks 8 --seq 2048
qwen2.5-7b rtx-3090 --seq 4096 --batch 4
qwen2.5-7b rtx-3090 --clip 0
qwen2.5-0.5b rtx-4090 --batch 512 --micro-batch 1 --seq 64
qwen2.5-32b h100 --recompute all --seq 4096
qwen3-30b-a3b rtx-4090 --seq 2048
qwen3-30b-a3b h200 --seq 4096 --lora 8
qwen3-30b-a3b h100-x8 --ranks 8 --seq 4096 --batch 32
qwen1.5-moe-a2.7b rtx-4090 --seq 1024
olmoe-1b-7b rtx-4090 --seq 1024 --host-mem 16GiB
mixtral-8x7b rtx-4090 --seq 1024
mixtral-8x7b h100-cluster --ranks 16 --seq 2048 --batch 32
gpt-oss-20b rtx-4090 --seq 1024 --batch 16
gpt2-xl rtx-3090 --precision fp32
gpt2 cpu-2core --device cpu --host-mem 1GiB --nvme-mem 20GiB --batch 4 --seq 256
mistral-7b v100-dgx2 --precision fp16 --gpu-mem 5GiB --seq 2048
""".strip().splitlines()]


def arguments(request):
    return ["--model", request[0], "--machine", request[1], *request[2:]]


def with_options(words, typed):
    """The command's words with these options, which replace those that it has."""
    words = list(words)
    for name, value in typed:
        if name in words:
            words[words.index(name) + 1] = value
        else:
            words += [name, value]
    return words


def plan(options, words):
    done = subprocess.run([program(options, "sluice"), "plan", *words], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def pairs(text):
    return re.findall(r"(--[a-z-]+) ([^\s,.]+)", text)


def hints(output):
    """Of all that the output advises: options, and the tokens a second that are promised, or None."""
    for name, value, tokens in re.findall(r"(--[a-z-]+) (\S+?)(?: for each rank)?: (\d+) tokens/s", output):
        yield [(name, value)], float(tokens)
    alone = re.search(r"Enough with the other budgets as given: (.*?\))\. ", output)
    within = re.search(r"Within these budgets, (.*) works\.", output)
    for found in (alone, within):
        for pair in pairs(found[1]) if found else []:
            yield [pair], None
    together = re.search(r"The least together: ([^(]*)\([^)]*\)(.)", output)
    if together and together[2] == ".":
        yield pairs(together[1]), None


def check(options, request):
    """Prints what fails. Returns how many hints there are, are accepted, and keep their promise."""
    code, output = plan(options, arguments(request))
    given = accepted = kept = 0
    if code not in (0, 3):
        note(f"  {' '.join(request)}: exit code {code}: {output[-200:]}")
        return 1, 0, 0
    for typed, promised in hints(output):
        given += 1
        words = with_options(arguments(request), typed)
        code, answer = plan(options, words + ["--no-advice"])
        reached = re.search(r"predicted: .* a step, (\d+) tokens/s", answer)
        accepted += code == 0
        holds = code == 0 and (promised is None or abs(float(reached[1]) / promised - 1) <= WITHIN)
        kept += holds
        if not holds:
            was = f"{reached[1]} tokens/s" if reached else answer[-300:]
            note(f"  {' '.join(words)}: promised {promised}, exit code {code}: {was}")
    note(f"{' '.join(request)}: {given} hints, {accepted} accepted, {kept} kept")
    return given, accepted, kept


def main():
    made = parser(__doc__)
    made.add_argument("--only", default="", help="requests whose words contain this")
    options = made.parse_args()
    chosen = [request for request in REQUESTS if options.only in " ".join(request)]
    if options.small:
        chosen = ["gpt2:layers=2,width=32,heads=2,vocab=256,context=32 cpu-2core --device cpu".split()]
    given, accepted, kept = (sum(counts) for counts in zip(*(check(options, r) for r in chosen)))
    table = Table()
    table.at_least("hints accepted", accepted, max(given, 1), 1, "")
    table.at_least("hints that keep their promise", kept, max(given, 1), 1, "")
    table.print()
    sys.exit(accepted < given or kept < given)


if __name__ == "__main__":
    main()
