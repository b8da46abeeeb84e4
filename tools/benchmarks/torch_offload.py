#!/usr/bin/env python3
"""Times a Llama in PyTorch with its optimizer on the CPU: the peer of gpu_check.sh, which runs this.

    python3 tools/benchmarks/torch_offload.py --mode loop|fsdp --layers N --width N ... --steps N

bf16 on the GPU, fp32 master weights and moments in host memory, torch.optim.AdamW (fused if this PyTorch has
that) on the CPU, gradients clipped to norm 1, layers recomputed in backward, scaled_dot_product_attention.
The whole batch runs at once, so that weights are copied as seldom as possible.
- loop: all weights on the GPU. Each gradient is copied to pinned memory as soon as it is complete. Layer by
  layer, new weights are copied back while the next layer is updated.
- fsdp: fully_shard with CPUOffloadPolicy on one rank.
Prints one JSON object; the first step does not count. Without a GPU it runs on the CPU, which only shows that
it works. Exit code 4: this PyTorch lacks what the mode needs.
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SKIPPED = 4  # exit code, as ExitCode::environment
CLIP = 1.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["loop", "fsdp"], required=True)
    for name in ("layers", "width", "heads", "kv-heads", "ffn", "vocab", "batch", "seq", "steps"):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", type=int, required=True)
    return parser.parse_args()


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.weight


def rotate(x, angles):
    """x: [batch, heads, tokens, size]; pairs lie half a head apart."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.size = o.heads, o.kv_heads, o.width // o.heads
        self.norm1, self.norm2 = Norm(o.width), Norm(o.width)
        self.q = nn.Linear(o.width, o.heads * self.size, bias=False)
        self.k = nn.Linear(o.width, o.kv_heads * self.size, bias=False)
        self.v = nn.Linear(o.width, o.kv_heads * self.size, bias=False)
        self.out = nn.Linear(o.heads * self.size, o.width, bias=False)
        self.gate = nn.Linear(o.width, o.ffn, bias=False)
        self.up = nn.Linear(o.width, o.ffn, bias=False)
        self.down = nn.Linear(o.ffn, o.width, bias=False)

    def attention(self, x):
        batch, tokens, _ = x.shape

        def heads(y, count):
            return y.view(batch, tokens, count, self.size).transpose(1, 2)

        positions = torch.arange(tokens, device=x.device, dtype=torch.float32)
        steps = torch.arange(0, self.size, 2, device=x.device, dtype=torch.float32) / self.size
        angles = positions[:, None] * 10000.0 ** -steps
        q = rotate(heads(self.q(x), self.heads), angles)
        k = rotate(heads(self.k(x), self.kv_heads), angles)
        v = heads(self.v(x), self.kv_heads)
        if self.kv_heads != self.heads:
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-2, -1) / self.size ** 0.5).masked_fill(later, float("-inf"))
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, tokens, -1))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocab, o.width)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = Norm(o.width)
        self.head = nn.Linear(o.width, o.vocab, bias=False)

    def forward(self, tokens, labels):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x, labels, loss = self.norm(x), labels.flatten(), 0.0
        for part, wanted in zip(x.flatten(0, 1).split(4096), labels.split(4096)):  # bounds the logits' memory
            loss = loss + checkpoint(self.loss, part, wanted, use_reentrant=False)
        return loss / labels.numel()

    def loss(self, x, labels):
        return F.cross_entropy(self.head(x).float(), labels, reduction="sum")


def adamw(parameters):
    """AdamW, fused if this PyTorch has that for the CPU."""
    arguments = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    try:
        return torch.optim.AdamW(parameters, fused=True, **arguments), True
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(parameters, **arguments), False


class Loop:
    """Weights on the GPU, optimizer state and pinned buffers in host memory; updates layer by layer."""

    def __init__(self, o, device):
        self.device, self.cuda = device, device.type == "cuda"
        with torch.device(device) if hasattr(torch.device, "__enter__") else contextlib.nullcontext():
            self.model = Llama(o)
        self.model.to(device=device, dtype=torch.bfloat16)
        initialise(self.model.parameters())
        self.copies = torch.cuda.Stream() if self.cuda else None
        self.groups, self.fused = [], True
        rest = [self.model.tokens, self.model.norm, self.model.head]
        for modules in [rest] + [[block] for block in self.model.blocks]:
            weights = [p for module in modules for p in module.parameters()]
            masters = [nn.Parameter(p.detach().float().cpu()) for p in weights]
            buffers = [torch.empty(p.shape, dtype=p.dtype, pin_memory=self.cuda) for p in weights]
            optimizer, fused = adamw(masters)
            self.fused &= fused
            self.groups.append((weights, masters, buffers, optimizer))
            for weight, buffer in zip(weights, buffers):
                self.send_when_ready(weight, buffer)

    def send_when_ready(self, weight, buffer):
        if not hasattr(weight, "register_post_accumulate_grad_hook"):
            return

        def send(p):
            if self.cuda:
                self.copies.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.copies) if self.cuda else contextlib.nullcontext():
                buffer.copy_(p.grad, non_blocking=True)

        weight.register_post_accumulate_grad_hook(send)

    def step(self, tokens, labels):
        loss = self.model(tokens, labels)
        loss.backward()
        weights = [p for group in self.groups for p in group[0]]
        norm = torch.stack([torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in weights]).norm()
        factor = min(1.0, CLIP / (norm.item() + 1e-6))
        if self.cuda:
            self.copies.synchronize()
        for weights, masters, buffers, optimizer in self.groups:
            for weight, master, buffer in zip(weights, masters, buffers):
                if not hasattr(weight, "register_post_accumulate_grad_hook"):
                    buffer.copy_(weight.grad)
                master.grad = buffer.float().mul_(factor)
                weight.grad = None
            optimizer.step()
            for weight, master, buffer in zip(weights, masters, buffers):
                master.grad = None
                buffer.copy_(master.detach())
                with torch.cuda.stream(self.copies) if self.cuda else contextlib.nullcontext():
                    weight.data.copy_(buffer, non_blocking=True)
        if self.cuda:
            torch.cuda.current_stream().wait_stream(self.copies)
        return loss.item()


class Fsdp:
    """FSDP2 on one rank: parameters, gradients and optimizer in host memory."""

    def __init__(self, o, device):
        try:
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        except ImportError:
            print(f"PyTorch {torch.__version__} has no FSDP2 (torch.distributed.fsdp.fully_shard)")
            sys.exit(SKIPPED)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        with torch.device("meta"):
            self.model = Llama(o)
        mesh = torch.distributed.init_device_mesh(device.type, (1,))
        how = dict(mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=device.type == "cuda"),
                   mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
        for block in self.model.blocks:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        self.model.to_empty(device="cpu")
        initialise(p.to_local() for p in self.model.parameters())
        self.optimizer, self.fused = adamw(self.model.parameters())

    def step(self, tokens, labels):
        loss = self.model(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def initialise(tensors):
    """Draws values on the GPU if there is one: the CPU takes minutes for billions of parameters."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad():
        for tensor in tensors:
            if tensor.dim() > 1:
                tensor.copy_(torch.randn(tensor.shape, device=device) * 0.02)
            else:
                tensor.fill_(1.0)


def main():
    o = parse()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = (Loop if o.mode == "loop" else Fsdp)(o, device)
    seconds, losses = [], []
    for _ in range(o.steps):
        text = torch.randint(o.vocab, (o.batch, o.seq + 1), device=device)
        begin = time.perf_counter()
        losses.append(run.step(text[:, :-1], text[:, 1:]))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[1:])
    print(json.dumps({
        "torch": torch.__version__, "mode": o.mode, "device": device.type, "fused": run.fused,
        "parameters": sum(p.numel() for p in run.model.parameters()), "seconds": step,
        "seconds_of_steps": seconds, "tokens_per_second": o.batch * o.seq / step, "losses": losses,
        "device_peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0}))


if __name__ == "__main__":
    main()
