"""Times a plain GPT-2 under DeepSpeed's ZeRO-3 with parameters and optimizer in host memory: a peer of
gpt2_small.py, which runs this.

    python3 tools/benchmarks/deepspeed_gpt2.py --precision fp32|bf16 [--steps N] [--layers N] ...

One rank on the CPU, with the model of torch_gpt2.py and DeepSpeedCPUAdam, without clipping. Prints one JSON
object with the seconds of every step. Needs the packages of peers.txt; the first run compiles DeepSpeed's
optimizer, which needs a C++ compiler.
"""
import json
import os
import sys
import time

import torch

from torch_gpt2 import Gpt2, parse, random_batch


def configuration(options):
    config = {
        "train_micro_batch_size_per_gpu": options.batch,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                              "offload_param": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    }
    if options.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def main():
    options = parse(__doc__)
    if options.threads:
        torch.set_num_threads(options.threads)
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(20000 + os.getpid() % 10000), DS_ACCELERATOR="cpu")
    result, sys.stdout = sys.stdout, sys.stderr  # DeepSpeed logs to the standard output
    import deepspeed  # pylint: disable=import-outside-toplevel  (reads the environment)
    torch.manual_seed(0)
    model = Gpt2(options)
    parameters = sum(p.numel() for p in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, config=configuration(options))
    seconds, losses = [], []
    for _ in range(options.steps):
        text = random_batch(options)
        begin = time.perf_counter()
        loss = engine(text[:, :-1], text[:, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"deepspeed": deepspeed.__version__, "torch": torch.__version__,
                      "threads": torch.get_num_threads(), "seconds": seconds, "losses": losses,
                      "parameters": parameters}), file=result)


if __name__ == "__main__":
    main()
