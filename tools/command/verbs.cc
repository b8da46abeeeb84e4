#include "tools/help.h"

#include <fmt/format.h>

#include "engine/error.h"
#include "tools/wrap.h"

namespace sluice {
namespace {

struct VerbText {
  Verb verb;
  const char* summary;
  const char* usage;
  const char* about;
  const char* examples;
};

constexpr VerbText kVerbs[] = {
    {Verb::train, "train a model within memory budgets", "--model MODEL --data FILE... --out DIR [options]",
     "Trains a model. The whole step is planned before it starts: what lives in device memory, host\n"
     "memory or on disk, and when it moves. The budgets are hard limits; a plan that cannot keep them\n"
     "is refused before anything is allocated, with the smallest budgets that would do.\n",
     "  sluice train --model gpt2 --data train.bin --val-data val.bin --out runs/first \\\n"
     "      --batch 16 --steps 2000 --host-mem 3GiB --nvme-dir /mnt/fast\n"
     "  sluice train --model gpt2:layers=6,width=384,heads=6,vocab=256,context=256 \\\n"
     "      --data book.txt --out runs/bytes\n"
     "  sluice train --out runs/first --resume auto                # goes on where the run stopped\n"
     "  sluice train --model ./llama-dir --data corpus.bin --out runs/tuned --lr 1e-5 --precision bf16\n"
     "  sluice train --gpus 4 --model gpt2 --data train.bin --out runs/four # four ranks, one process\n"
     "  mpirun --hostfile hosts -np 16 sluice train --model llama-8b --data /shared/train.bin \\\n"
     "      --batch 64 --out /shared/run                           # ranks of several machines\n"},
    {Verb::plan, "show what would live where, and how fast a step would be",
     "--model MODEL [options of train]",
     "Plans a training step and prints where everything would live, the exact peak of every tier, the\n"
     "bytes moved and the predicted time, or why the budgets cannot work and the smallest that would.\n"
     "Then what the step takes that time for: how busy every lane is, what compute waits for, the critical\n"
     "path, the bottleneck, and what is written to drives in a day (docs/plan.md). Touches no data and\n"
     "allocates no tensors. Takes the options of `sluice train`; with --resume, plans how that run would\n"
     "go on.\n",
     "  sluice plan --model gpt2-xl --batch 4 --host-mem 3GiB --nvme-dir /mnt/fast\n"
     "  sluice plan --model llama-8b --gpu-mem 8GiB --host-mem 24GiB --nvme-dir /mnt/fast --json\n"
     "  sluice plan --out runs/first --resume auto --host-mem 2GiB # a run under other budgets\n"
     "  sluice plan --model llama-13b --machine rtx-4090 --sweep host-mem=32GiB:256GiB\n"
     "  sluice plan --model gpt2 --text                            # the program itself\n"
     "  sluice plan --model llama-70b --machine rtx-4090 --host-mem 64GiB --seq 2048 # of a known machine\n"
     "  sluice plan --model llama-13b --batch 160 --seq 1024 --ranks 80 --machine a100-cluster \\\n"
     "      --device cuda --gpu-mem 80GiB --host-mem 100GiB        # a rank of a cluster\n"},
    {Verb::eval, "validation loss of a run, a checkpoint or Hugging Face weights",
     "--from RUN|CHECKPOINT|HF_DIR --data FILE... [options]",
     "Prints the mean loss over the first --val-batches batches of the data. Options of a run or\n"
     "checkpoint (precision, batch, tokens of a sequence) are kept unless given here.\n",
     "  sluice eval --from runs/first --data val.bin\n"
     "  sluice eval --from ./gpt2-dir --data val.bin --precision fp32 --json\n"},
    {Verb::export_run, "write weights as a Hugging Face directory",
     "--from RUN|CHECKPOINT --to DIR [--dtype NAME] [--shards N]",
     "Writes config.json and safetensors that other programs load. Tokenizer files of the directory\n"
     "that the run started from are copied along. With --shards, PyTorch's distributed checkpoint loads\n"
     "and reshards them (torch.distributed.checkpoint.HuggingFaceStorageReader).\n",
     "  sluice export --from runs/first --to exported\n"
     "  sluice export --from runs/first --to exported-fp32 --dtype fp32\n"
     "  sluice export --from runs/first --to shards --shards 4\n"},
    {Verb::doctor, "look at this machine, and tell what stands in the way of training",
     "[--nvme-dir DIR[,DIR...]] [--device NAME] [--json]",
     "Looks at what training would use here, a line each: GPU, driver, memory, link and what copies over\n"
     "it really bring, pinned memory, limits, NUMA nodes, huge pages, io_uring and the directories of\n"
     "--nvme-dir. Takes a few seconds; changes nothing.\n"
     "  ok     as it should be\n"
     "  warn   training works, slower or smaller than it could\n"
     "  FAIL   training with the same --device and --nvme-dir would be refused\n"
     "Below a line that is not ok stands what follows from it and the command that mends it, or that shows\n"
     "what stands in the way. Exit code: 0 if no line fails, else 4. Without --device, a missing GPU is a\n"
     "warning: training then runs on the cpu device.\n",
     "  sluice doctor\n"
     "  sluice doctor --nvme-dir /mnt/fast,/mnt/second\n"
     "  sluice doctor --json | python3 -m json.tool                # also the figures, to the bit\n"},
    {Verb::profile, "run a few steps of a training command, and explain where their time went",
     "--out DIR [--steps N] -- [options of train]",
     "Runs the first steps of the training command after `--`, exactly as train would, and writes into DIR\n"
     "  report.html   lanes, memory, predictions and stalls: opens from disk in any browser\n"
     "  profile.md    the same facts as text\n"
     "  trace.json    every instruction, for ui.perfetto.dev or chrome://tracing\n"
     "  profile.json  the same facts for programs (docs/profile.md)\n"
     "Of the training command --steps, --metrics and the options of checkpoints and validation have no\n"
     "effect: nothing is saved, and no run directory is touched. With --resume it goes on from a\n"
     "checkpoint, which it only reads. A run that fails or is stopped half-way leaves the report of what\n"
     "happened, and ends with its own exit code. Records of the steps lie beside --host-mem.\n",
     "  sluice profile --out report -- --model gpt2 --data train.bin --batch 4 --host-mem 3GiB \\\n"
     "      --nvme-dir /mnt/fast\n"
     "  sluice profile --steps 20 --out report -- --out runs/first --resume auto --host-mem 2GiB\n"},
    {Verb::bench, "measure this machine, for predictions", "[--nvme-dir DIR] [--out FILE] [options]",
     "Measures what a training step is made of, in less than a minute: every kind of op in each precision,\n"
     "on the GPU if there is one; the GPU's memory, and copies each way alone and both at once; the CPU's\n"
     "optimizer, host memory alone and with several threads at it, and each directory of --nvme-dir. Under\n"
     "mpirun the first rank measures its machine while the others wait, then all measure what they send\n"
     "each other, in a machine and between machines. Nothing is trained. What it finds is printed, and\n"
     "written as a machine description (docs/machine.md), a JSON file that may be edited; plan and train\n"
     "predict with it when it is named in --machine. Let nothing else run meanwhile. Directories are tried\n"
     "first, and take 2 GiB each for a while; with less memory than usual, by --host-mem or by what is\n"
     "free, it times smaller buffers, and says so.\n",
     "  sluice bench --nvme-dir /mnt/fast --out machine.json\n"
     "  mpirun -np 8 --bind-to none sluice bench --nvme-dir /mnt/fast --out node.json\n"
     "  sluice plan --model llama-8b --nvme-dir /mnt/fast --machine machine.json\n"},
};

const VerbText& text_of(Verb verb) {
  for (const VerbText& text : kVerbs)
    if (text.verb == verb) return text;
  check_failed("verb", __FILE__, __LINE__, verb_name(verb));
}

void append_entry(std::string& out, const std::string& head, const std::string& explanation) {
  constexpr size_t kIndent = 28;  // columns
  append_wrapped(out, "  " + head, explanation, kIndent);
}

void append_options(std::string& out, Verb verb) {
  std::string group;
  for (const OptionRow& row : option_table()) {
    if (!(row.verbs & verb_bit(verb))) continue;
    if (group != row.group) out += fmt::format("\n{}\n", row.group);
    group = row.group;
    std::string explanation = row.help;
    const bool kept = verb == Verb::eval && row.on_resume == OnResume::fixed;
    if (*row.default_text != '\0')
      explanation += fmt::format(" (default: {}{})", kept ? "the run's own, else " : "", row.default_text);
    append_entry(out, fmt::format("--{}{}{}", row.name, *row.value == '\0' ? "" : " ", row.value),
                 explanation);
  }
}

}  // namespace

std::string program_help() {
  std::string out =
      "sluice: trains models that do not fit the memory of the machine, within budgets that hold.\n\n"
      "usage: sluice VERB [options]      `sluice VERB --help` explains the options of a verb\n\nverbs\n";
  for (const VerbText& text : kVerbs) append_entry(out, verb_name(text.verb), text.summary);
  out +=
      "\nexamples\n"
      "  sluice plan --model gpt2-xl --host-mem 3GiB --nvme-dir /mnt/fast\n"
      "  sluice train --model gpt2 --data train.bin --out runs/first --steps 1000\n"
      "  sluice export --from runs/first --to exported\n"
      "\nexit codes\n"
      "  0 done, 1 bug, 2 usage, 3 the budgets cannot work, 4 environment, 5 a file is malformed,\n"
      "  6 I/O failed or space ran out, 7 a rank was lost, 8 numbers are not finite,\n"
      "  75 stopped on a signal with a durable checkpoint\n"
      "\nsignals\n"
      "  SIGINT, SIGTERM or SIGUSR1 ends training after the steps under way, with a checkpoint; before\n"
      "  the first step, and in other verbs, at once. So does a second SIGINT or SIGTERM; two within two\n"
      "  seconds count as one. To stop ranks of mpirun, send it SIGUSR1, which it hands on; on others it\n"
      "  kills them.\n";
  return out;
}

std::string verb_help(Verb verb) {
  const VerbText& text = text_of(verb);
  std::string out = fmt::format("sluice {}: {}.\n\nusage: sluice {} {}\n\n{}", verb_name(verb), text.summary,
                                verb_name(verb), text.usage, text.about);
  append_options(out, verb);
  out += fmt::format("\nexamples\n{}", text.examples);
  if (verb != Verb::export_run && verb != Verb::doctor && verb != Verb::profile)
    out +=
        "\nSIZE is 1.5GiB, 800MB, 4096 (bytes), 80% (of what is free) or auto; GB is 10^9, GiB 2^30 "
        "bytes.\n";
  return out;
}

}  // namespace sluice
