"""Times torch.optim.AdamW, fused and with PyTorch's defaults: the peers of adamw.py, which runs this.

    python3 tools/benchmarks/torch_adamw.py [--parameters N] [--rounds N] [--threads N] [--json]

Needs the packages of peers.txt.
"""
import argparse
import json
import statistics
import time

import torch


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="threads (default: PyTorch's own)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def torch_rate(parameters, rounds, fused):
    """Parameters a second, median over rounds; the first step allocates the state and is not timed."""
    weight = torch.nn.Parameter(torch.full((parameters,), 0.5))
    weight.grad = torch.full((parameters,), 0.5)
    optimizer = torch.optim.AdamW([weight], fused=fused)
    optimizer.step()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return parameters / statistics.median(seconds)


def main():
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    rates = {"fused": torch_rate(options.parameters, options.rounds, True),
             "default": torch_rate(options.parameters, options.rounds, None)}
    if options.json:
        print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(),
                          "parameters_per_second": rates}))
        return
    for name, rate in rates.items():
        print(f"torch.optim.AdamW, {name} ({torch.__version__}, {torch.get_num_threads()} threads): "
              f"{rate / 1e9:.3f} G parameters/s")


if __name__ == "__main__":
    main()
