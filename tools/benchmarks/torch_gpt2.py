"""Times a plain GPT-2 in PyTorch, eager or compiled: a peer of gpt2_small.py, which runs this.

    python3 tools/benchmarks/torch_gpt2.py --precision fp32|bf16 [--compile] [--steps N] [--layers N] ...

Forward, loss, backward and the fused torch.optim.AdamW on random tokens; bf16 means autocast around the
forward, as PyTorch's documentation recommends. There is no dropout and no clipping, so the peer does a little
less than ours. Prints one JSON object with the seconds of every step; with --compile the first ones compile.
Needs the packages of peers.txt.
"""
import argparse
import contextlib
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


def parse(description):
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    for name, default in (("steps", 6), ("threads", 0), ("batch", 4), ("seq", 256), ("layers", 12),
                          ("width", 768), ("heads", 12), ("vocab", 50257), ("context", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(o.vocab, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.Sequential(*(Block(o.width, o.heads) for _ in range(o.layers)))
        self.norm = nn.LayerNorm(o.width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)  # the head is the embedding
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def random_batch(options):
    return torch.randint(options.vocab, (options.batch, options.seq + 1))


def main():
    options = parse(__doc__)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = Gpt2(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if options.compile else model
    seconds, losses = [], []
    for _ in range(options.steps):
        text = random_batch(options)
        begin = time.perf_counter()
        reduced = options.precision == "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16) if reduced else contextlib.nullcontext():
            loss = forward(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "seconds": seconds,
                      "losses": losses, "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
