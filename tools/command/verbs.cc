#include "tools/command/verbs.h"

#include <algorithm>
#include <iterator>

namespace sluice {
namespace {

constexpr VerbRow kTable[] = {
    {.verb = Verb::train,
     .on_ranks = true,
     .prints_result = false,
     .summary = "train a model within memory budgets",
     .usage = "--model MODEL --data FILE... --out DIR [options]",
     .about = "Trains a model. The whole step is planned before it starts: what lives in device memory, in "
              "host memory or on drives, and when it moves. Budgets are hard limits. If no plan keeps them, "
              "the run is refused before anything is allocated, with the smallest budgets that would do.\n",
     .examples =
         "# A first try on a laptop: a small model on a .txt file, which is read byte by byte.\n"
         "sluice train --model gpt2:layers=6,width=384,heads=6,vocab=256,context=256 --data book.txt --out "
         "runs/first --steps 300 --host-mem 2GiB\n"
         "# One GPU and a drive, which holds what does not fit in memory.\n"
         "sluice train --model llama-8b --data train.bin --val-data val.bin --out runs/llama --batch 16 "
         "--steps 2000 --host-mem 48GiB --nvme-dir /mnt/fast\n"
         "# Several GPUs under mpirun, here of four machines; --gpus 4 is enough for those of one machine.\n"
         "mpirun --hostfile hosts -np 16 sluice train --model llama-8b --data /shared/train.bin --out "
         "/shared/run --batch 64\n"
         "# Go on where the run stopped.\n"
         "sluice train --out runs/first --resume auto\n"
         "# Train a model from Hugging Face on chats of your own (docs/fine-tuning.md).\n"
         "sluice train --model ./Qwen3-8B --data chats.jsonl --out runs/tuned --epochs 3 --seq 2048 --lr "
         "1e-5\n"},
    {.verb = Verb::prepare,
     .on_ranks = false,
     .prints_result = true,
     .summary = "turn text and chats into tokens, and show what is trained of them",
     .usage = "--data FILE... --tokenizer DIR|--model HF_DIR [options]",
     .about =
         "Reads .jsonl (chats, instructions, texts) or .txt with the tokenizer and the chat template of a "
         "model, and keeps the tokens, each with a mark whether it is trained, under --cache by their "
         "content. "
         "`sluice train` does the same by itself where --data are such files; this verb does it alone, on "
         "any "
         "machine, and shows samples. A stop keeps what is done.\n",
     .examples = "sluice prepare --data chats.jsonl --model ./Qwen3-8B --show 2\n"
                 "# Keys of another name, and only the last answer trained.\n"
                 "sluice prepare --data dialogs.jsonl --tokenizer ./Qwen3-8B --data-keys "
                 "messages=dialog,role=speaker --train-on last\n"},
    {.verb = Verb::plan,
     .on_ranks = false,
     .prints_result = true,
     .summary = "show what would live where, and how fast a step would be",
     .usage = "--model MODEL [options of train]",
     .about = "Plans a training step and prints where everything would live, the exact peak of every tier, "
              "the bytes moved and the predicted time. If the budgets cannot work, prints why, and the "
              "smallest that would. Also prints where the time of a step goes: how busy every lane is, what "
              "compute waits for, the critical path, the bottleneck, and what is written to drives in a day "
              "(docs/plan.md). Reads no data and allocates no tensors. Takes the options of `sluice train` "
              "that bear on a step; with --resume, plans how that run would go on.\n",
     .examples = "sluice plan --model gpt2-xl --batch 4 --host-mem 3GiB --nvme-dir /mnt/fast\n"
                 "sluice plan --model llama-8b --gpu-mem 8GiB --host-mem 24GiB --nvme-dir /mnt/fast --json\n"
                 "# A run under other budgets.\n"
                 "sluice plan --out runs/first --resume auto --host-mem 2GiB\n"
                 "sluice plan --model llama-13b --machine rtx-4090 --sweep host-mem=32GiB:256GiB\n"
                 "# The program itself.\n"
                 "sluice plan --model gpt2 --text\n"
                 "# Another machine.\n"
                 "sluice plan --model llama-70b --machine rtx-4090 --host-mem 64GiB --seq 2048\n"
                 "# One rank of a cluster.\n"
                 "sluice plan --model llama-13b --batch 160 --seq 1024 --ranks 80 --machine a100-cluster "
                 "--device cuda --gpu-mem 80GiB --host-mem 100GiB\n"},
    {.verb = Verb::eval,
     .on_ranks = false,
     .prints_result = true,
     .summary = "validation loss of a run, a checkpoint or Hugging Face weights",
     .usage = "--from RUN|CHECKPOINT|HF_DIR --data FILE... [options]",
     .about = "Prints the mean loss over the data or their first --val-batches batches, its exponential "
              "(perplexity, without what routers of experts add), and the share of targets whose logit is "
              "the largest (accuracy). Precision, batch and tokens of a sequence are those of the run or "
              "checkpoint unless given here.\n",
     .examples = "sluice eval --from runs/first --data val.bin\n"
                 "sluice eval --from runs/first --best --data val.bin\n"
                 "sluice eval --from ./gpt2-dir --data val.bin --precision fp32 --json\n"},
    {.verb = Verb::export_run,
     .on_ranks = false,
     .prints_result = true,
     .summary = "write weights as a Hugging Face directory",
     .usage = "--from RUN|CHECKPOINT --to DIR [--dtype NAME] [--shards N]",
     .about =
         "Writes config.json and safetensors that other software loads. If the run started from a Hugging "
         "Face directory, its tokenizer files are copied along. With --shards, PyTorch's distributed "
         "checkpoint loads and reshards the files (torch.distributed.checkpoint.HuggingFaceStorageReader).\n",
     .examples = "sluice export --from runs/first --to exported\n"
                 "sluice export --from runs/first --best --to exported-best\n"
                 "sluice export --from runs/first --to exported-fp32 --dtype fp32\n"
                 "sluice export --from runs/first --to shards --shards 4\n"},
    {.verb = Verb::doctor,
     .on_ranks = false,
     .prints_result = true,
     .summary = "check what on this machine stands in the way of training",
     .usage = "[--nvme-dir DIR[,DIR...]] [--device NAME] [--json]",
     .about = "Checks what training would use here, a line each: GPU, driver, memory, link and the measured "
              "rates of "
              "copies over it, pinned memory, limits, NUMA nodes, huge pages, I/O back ends and the "
              "directories of "
              "--nvme-dir. Takes a few seconds; changes nothing.\n"
              "  ok     as it should be\n"
              "  warn   training works, slower or smaller than it could\n"
              "  FAIL   training with the same --device and --nvme-dir would be refused\n"
              "Below a line that is not ok stand its consequence and a command that mends it, or that shows "
              "what is "
              "wrong. Exit code: 0 if no line fails, else 4. Without --device, a missing GPU is a warning: "
              "training "
              "then runs on the cpu device.\n",
     .examples = "sluice doctor\n"
                 "sluice doctor --nvme-dir /mnt/fast,/mnt/second\n"
                 "# With exact figures.\n"
                 "sluice doctor --json | python3 -m json.tool\n"},
    {.verb = Verb::profile,
     .on_ranks = false,
     .prints_result = true,
     .summary = "run a few steps of a training command, and explain where their time went",
     .usage = "--out DIR [--steps N] -- [options of train]",
     .about =
         "Runs the first steps of the training command after `--`, exactly as train would, and writes into "
         "DIR\n"
         "  report.html   lanes, memory, predictions and stalls, for any browser; needs no network\n"
         "  profile.md    the same facts as text\n"
         "  trace.json    every instruction, for ui.perfetto.dev or chrome://tracing\n"
         "  profile.json  the same facts for other software (docs/profile.md)\n"
         "In the training command, --steps, --metrics and the options of checkpoints and validation have no "
         "effect: nothing is saved, and no run directory is touched. With --resume it goes on from a "
         "checkpoint, which it only reads. If the run fails or is stopped half-way, the report has what "
         "happened until then, and the exit code is that of the run. Records of the steps take memory beside "
         "--host-mem.\n",
     .examples =
         "sluice profile --out report -- --model gpt2 --data train.bin --batch 4 --host-mem 3GiB --nvme-dir "
         "/mnt/fast\n"
         "sluice profile --steps 20 --out report -- --out runs/first --resume auto --host-mem 2GiB\n"},
    {.verb = Verb::bench,
     .on_ranks = true,
     .prints_result = true,
     .summary = "measure this machine, for predictions",
     .usage = "[--nvme-dir DIR] [--model MODEL] [--out FILE] [options]",
     .about =
         "Measures what a training step is made of, in about a minute: every op in each precision, on "
         "the GPU if there is one; the GPU's memory, and copies each way alone and both at once; the "
         "optimizer on the processor; copies in host memory by one thread and by several; and each directory "
         "of --nvme-dir. Under mpirun the first rank measures its machine while the others wait. Then all "
         "measure what they send each other, within a machine and between machines. Nothing is trained. The "
         "results are printed and written as a machine description (docs/machine.md), a JSON file that may "
         "be edited. plan and train predict with it when --machine names it. Let nothing else run meanwhile. "
         "Directories are tried first, and need 2 GiB each for a while. If --host-mem or free memory does "
         "not suffice, smaller buffers are timed, and a line says so. If the rounds of a rate disagree, it "
         "is "
         "timed again for some seconds. Rates whose rounds still disagree are named at the end as "
         "doubtful. With --model, the last measurement is of that model's matrix products on the GPU: which "
         "of the algorithms that its library has is the fastest for each.\n",
     .examples = "sluice bench --nvme-dir /mnt/fast --out machine.json\n"
                 "mpirun -np 8 --bind-to none sluice bench --nvme-dir /mnt/fast --out node.json\n"
                 "sluice plan --model llama-8b --nvme-dir /mnt/fast --machine machine.json\n"
                 "# Which algorithms are fastest for the matrix products of a model?\n"
                 "sluice bench --model gpt2-xl --batch 16 --out gpt2-xl.json\n"
                 "sluice train --model gpt2-xl --batch 16 --matmul-algorithms gpt2-xl.json --data train.bin "
                 "--out runs/xl\n"},
    {.verb = Verb::completion,
     .on_ranks = false,
     .prints_result = true,
     .summary = "print what a shell needs to complete commands of sluice",
     .usage = "bash|zsh|fish",
     .about = "Prints a script for the shell. It offers verbs, their options, and values: presets, built-in "
              "machine descriptions, words, files and directories. It knows this version of sluice: print it "
              "anew after an update.\n",
     .examples = "# In bash: for this shell, and for every shell to come.\n"
                 "source <(sluice completion bash)\n"
                 "sluice completion bash > ~/.local/share/bash-completion/completions/sluice\n"
                 "# In zsh: a folder of $fpath, before compinit runs.\n"
                 "sluice completion zsh > ~/.zfunc/_sluice\n"
                 "# In fish.\n"
                 "sluice completion fish > ~/.config/fish/completions/sluice.fish\n",
     .word = "shell"},
    {.verb = Verb::report,
     .on_ranks = false,
     .prints_result = true,
     .summary = "draw the curves of one or more runs on a page",
     .usage = "RUN [RUN...] [--out FILE]",
     .about =
         "Reads the metrics of runs, also of runs that train at the moment, and writes one page for any "
         "browser, which needs no network: curves of loss, validation loss, learning rate, gradient norm, "
         "tokens per second and memory, and a table of the runs and of the options in which they differ "
         "(docs/watch.md).\n",
     .examples = "sluice report runs/first\n"
                 "sluice report runs/small-lr runs/large-lr --out lr.html\n",
     .word = "run"},
    {.verb = Verb::generate,
     .on_ranks = false,
     .prints_result = true,
     .summary = "let a run, a checkpoint or Hugging Face weights speak",
     .usage = "--from RUN|CHECKPOINT|HF_DIR --prompt TEXT|--chat|--prompts FILE [options]",
     .about =
         "Continues a text, answers in a conversation, or answers every prompt of a file. Weights and the "
         "cache of earlier tokens live where the budgets allow, as in training, so a model that is larger "
         "than memory speaks too, slowly; `sluice plan --generate` says how slowly. Answers depend on "
         "--seed, never on budgets or --batch. Of drawing, generation_config.json of the model says what no "
         "option says (docs/generate.md).\n",
     .examples = "sluice generate --from runs/mine --chat\n"
                 "sluice generate --from ./qwen3-dir --prompt Once --temperature 0.8 --top-p 0.95\n"
                 "# Many prompts share each pass over the weights.\n"
                 "sluice generate --from ./llama-dir --prompts questions.jsonl --batch 32 --gpu-mem 20GiB\n"},
};

// Row n belongs to the n-th enumerator of Verb; none is missing.
static_assert(std::size(kTable) == kVerbCount);
static_assert(std::ranges::all_of(kTable, [](const VerbRow& row) {
  return &row - kTable == static_cast<std::ptrdiff_t>(row.verb);
}));

}  // namespace

std::span<const VerbRow> verb_table() { return kTable; }

const VerbRow& verb_row(Verb verb) { return kTable[static_cast<size_t>(verb)]; }

const VerbRow* find_verb(const std::string& word) {
  const auto row = std::ranges::find_if(kTable, [&](const VerbRow& r) { return word == verb_name(r.verb); });
  return row == std::end(kTable) ? nullptr : row;
}

}  // namespace sluice
