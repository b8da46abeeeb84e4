"""Times transformers' Mixtral in PyTorch on the processor: a peer of experts.py, which runs this.

    python3 tools/benchmarks/torch_mixtral.py --precision fp32|bf16 [--experts eager|grouped_mm] [--compile] ...

Forward, loss and backward of each micro-batch, then the fused torch.optim.AdamW, on random tokens; bf16 means
autocast around the forward. The loss is that of tokens alone, and there is no clipping, so the peer does a
little less than ours. `--experts` is transformers' experts_implementation. Prints one JSON object with the
seconds of every step. Needs the packages of peers.txt.
"""
import argparse
import contextlib
import json
import time

import torch
import transformers


def parse(description):
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    for name, default in (("steps", 6), ("threads", 0), ("batch", 16), ("micro-batch", 4), ("seq", 512),
                          ("layers", 4), ("width", 768), ("heads", 12), ("ffn", 2048), ("vocab", 1024),
                          ("experts-count", 8), ("top", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--experts", default="eager", help="experts_implementation")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def make_model(options):
    config = transformers.MixtralConfig(
        vocab_size=options.vocab, hidden_size=options.width, intermediate_size=options.ffn,
        num_hidden_layers=options.layers, num_attention_heads=options.heads, num_key_value_heads=options.heads,
        max_position_embeddings=options.seq, num_local_experts=options.experts_count,
        num_experts_per_tok=options.top, tie_word_embeddings=False, use_cache=False,
        attn_implementation="sdpa", experts_implementation=options.experts)
    return transformers.MixtralForCausalLM(config)


def main():
    options = parse(__doc__)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = make_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if options.compile else model
    parts = options.batch // options.micro_batch
    seconds, losses = [], []
    for _ in range(options.steps):
        tokens = torch.randint(options.vocab, (parts, options.micro_batch, options.seq))
        begin = time.perf_counter()
        total = 0
        for text in tokens:
            reduced = options.precision == "bf16"
            with torch.autocast("cpu", dtype=torch.bfloat16) if reduced else contextlib.nullcontext():
                loss = forward(input_ids=text, labels=text).loss / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "threads": torch.get_num_threads(), "seconds": seconds, "losses": losses,
                      "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
