// Prints docs/measurements/traffic.md: what each op of two models moves at least, and what its launches move.
// Needs no GPU.
//
//   print_traffic COMMIT > docs/measurements/traffic.md
//
// The text that it prints first says what the columns mean; traffic.h and op_traffic.h have the code.
#include <fmt/format.h>

#include "models/families/config.h"
#include "models/families/family.h"
#include "tests/emulation/op_traffic.h"

namespace sluice::emulation {
namespace {

constexpr double kBar = 1.25;  // traffic_test's

constexpr const char* kHead = R"(# Memory traffic of the cuda device's ops

Counted without a GPU, at commit {}:

```
build/release/print_traffic COMMIT > docs/measurements/traffic.md
```

The emulation runs our kernels and notes every access to device memory, in sectors of 32 bytes. Nothing here
is a time. The emulated GPU has the 132 multiprocessors of an H100 and its shared memory, 227 KiB for a block;
where a title says RTX 4090, 128 multiprocessors and 99 KiB.

- **At least**: what an op must move. Each operand is read or written once. A gradient of an input that is
  added to is read too. The gradient of a parameter counts as written once, as in the first micro-batch of a
  step. The loss's logits, in fp32, are written once and read once.
- **Read, written**: distinct sectors of each launch times 32 bytes, over all launches of the op. DRAM must
  move so much if nothing is kept between launches. A product by cuBLASLt counts with its operands, each once.
- **Ratio**: read plus written, divided by what is needed at least.
- **Own kernels**: the same without products. They must do at least what the products leave. The gradient of a
  bias is a sum over rows of dy. The loss reads logits, and in backward writes their gradients.
- **With visits**: visits instead of distinct sectors. A block visits a sector when it first touches it, and
  again if it has visited 64 KiB of others since. What several blocks read counts several times, and so does
  what a block reads again late. `traffic_test` asserts that this ratio is at most 1.25, and names the
  exceptions.

Of attention, one head is counted. Ratios hardly depend on the number of rows, except with visits of attention
and embedding.

The loss's backward looks at each logit twice. It keeps as many logits of a row as fit in shared memory, 57600
on an H100 and 24832 on an RTX 4090, and reads the others again. So its ratio depends on vocabulary and GPU.
)";

double in_mb(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

std::string text_of(double ratio) { return ratio == 0 ? "-" : fmt::format("{:.2f}", ratio); }

void print_ops(const std::vector<CountedOp>& ops) {
  fmt::print(
      "\n| op | Mflop at least | MB at least | read | written | ratio | own kernels: MB at least | ratio | ");
  fmt::print("with visits |\n|---|---|---|---|---|---|---|---|---|\n");
  for (const CountedOp& op : ops)
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | {} | {:.2f} | {} | {} |\n", op.name,
               op.flops / 1e6, in_mb(op.all.least), in_mb(op.all.read), in_mb(op.all.written),
               text_of(op.all.ratio()), in_mb(op.kernels.least), text_of(op.kernels.ratio()),
               text_of(op.kernels.ratio_of_visits()));
}

double visits_of(const SectorCount& sectors) {
  return sectors.distinct == 0 ? 0
                               : static_cast<double>(sectors.visits) / static_cast<double>(sectors.distinct);
}

// The launches of ops above the bar.
void print_launches(const std::vector<CountedOp>& ops) {
  fmt::print("\n| launch of an op above {} | blocks | MB read | visits | MB written | visits |\n", kBar);
  fmt::print("|---|---|---|---|---|---|\n");
  for (const CountedOp& op : ops)
    for (size_t i = 0; i < op.launches.size(); ++i) {
      const LaunchTraffic& l = op.launches[i];
      if (op.all.ratio() <= kBar && op.kernels.ratio_of_visits() <= kBar) continue;
      fmt::print("| {}: {}, {} | {} | {:.2f} | {} | {:.2f} | {} |\n", op.name, i + 1, l.source, l.blocks,
                 in_mb(l.read.distinct * kSectorBytes), text_of(visits_of(l.read)),
                 in_mb(l.written.distinct * kSectorBytes), text_of(visits_of(l.written)));
    }
}

void print_loss(const char* title, int64_t rows, int64_t columns, int64_t vocabulary,
                const EmulatedGpu& gpu) {
  fmt::print("\n## {}\n", title);
  print_ops(count_loss(rows, columns, vocabulary, gpu));
}

void print_model(const char* title, const char* name, int64_t sequence) {
  fmt::print("\n## {}, a sequence of {} tokens\n", title, sequence);
  const std::vector<CountedOp> ops = count_ops(build_model(config_from_name(name), DType::bf16, 1, sequence));
  print_ops(ops);
  print_launches(ops);
}

}  // namespace
}  // namespace sluice::emulation

int main(int argc, char** argv) {
  using namespace sluice::emulation;
  if (argc != 2) {
    fmt::print(stderr, "usage: print_traffic COMMIT\n");
    return 2;
  }
  fmt::print(kHead, argv[1]);
  print_model("GPT-2 1.5B", "gpt2-xl", 1024);
  print_model("Llama 7B", "llama-7b", 4096);
  print_loss("The loss of GPT-2, on an RTX 4090", 1024, 1600, 50257, rtx_4090());
  print_loss("The loss of Llama 3.2 1B, on an H100", 1024, 2048, 128256, h100());
  fmt::print("\n## Gradients and updates\n");
  print_ops(count_updates(uint64_t{1} << 22));
}
