"""Times torch.optim.AdamW with PyTorch's defaults, to compare with adamw_bench.

    python3 tools/benchmarks/torch_adamw.py [--parameters N] [--rounds N] [--threads N] [--bench build/release/adamw_bench]

With --bench, that program runs right after and the ratio is printed. Needs PyTorch (Debian: python3-torch).
"""
import argparse
import re
import statistics
import subprocess
import time

import torch


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of both; default: what PyTorch takes")
    parser.add_argument("--bench", help="path of adamw_bench")
    return parser.parse_args()


def torch_rate(parameters, rounds):
    """Parameters a second, median over rounds; the first step allocates the state and is not timed."""
    weight = torch.nn.Parameter(torch.full((parameters,), 0.5))
    weight.grad = torch.full((parameters,), 0.5)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return parameters / statistics.median(seconds)


def our_rate(bench, parameters, rounds):
    threads = torch.get_num_threads()
    command = [bench, f"--parameters={parameters}", f"--rounds={rounds}", f"--threads={threads}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"AdamW\s+([\d.]+) G parameters/s", text).group(1)) * 1e9


def main():
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    theirs = torch_rate(options.parameters, options.rounds)
    name = f"torch.optim.AdamW ({torch.__version__}, {torch.get_num_threads()} threads)"
    print(f"{name}: {theirs / 1e9:.3f} G parameters/s")
    if options.bench:
        ours = our_rate(options.bench, options.parameters, options.rounds)
        print(f"AdamW here: {ours / 1e9:.3f} G parameters/s, ratio {ours / theirs:.1f} (bar 8)")


if __name__ == "__main__":
    main()
