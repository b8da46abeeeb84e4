// The command line as a user meets it: what is accepted, and what is refused with which words.
#include "tools/command/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "offload/io/backends.h"
#include "tests/support/command_line_support.h"
#include "tools/command/help.h"
#include "tools/command/manual.h"
#include "tools/command/verbs.h"

namespace sluice {
namespace {

TEST(CommandLine, DefaultsAreThoseOfTheContract) {
  const ParsedCommand command = parse(kTrain);
  const Options& o = command.options;
  EXPECT_EQ(command.verb, Verb::train);
  EXPECT_EQ(command.text, "");
  EXPECT_EQ(o.model.model, "gpt2");
  EXPECT_EQ(o.data.train, std::vector<std::string>{"a.bin"});
  EXPECT_EQ(o.run.out, "run");
  EXPECT_EQ(o.optimizer.learning_rate, 3e-4);
  EXPECT_FALSE(o.optimizer.min_learning_rate);
  EXPECT_EQ(o.optimizer.warmup.steps, 0);
  EXPECT_EQ(o.optimizer.schedule, Schedule::cosine);
  EXPECT_EQ(o.optimizer.weight_decay, 0.1);
  EXPECT_EQ(o.optimizer.beta1, 0.9);
  EXPECT_EQ(o.optimizer.beta2, 0.95);
  EXPECT_EQ(o.optimizer.epsilon, 1e-8);
  EXPECT_EQ(o.optimizer.clip, 1);
  EXPECT_EQ(o.numbers.seed, 0u);
  EXPECT_EQ(o.numbers.precision, DType::bf16);
  EXPECT_EQ(o.data.order, RowOrder::shuffled);
  EXPECT_FALSE(o.batch.sequence);
  EXPECT_FALSE(o.batch.micro_batch);
  EXPECT_EQ(o.run.checkpoint_every.steps, 0);
  EXPECT_EQ(o.run.keep, 2);
  EXPECT_EQ(o.memory.host, Size{});
  EXPECT_TRUE(o.memory.nvme_directories.empty());
}

TEST(CommandLine, EveryOptionReachesItsField) {
  const Options o = options_of(
      "train --model llama-8b --from-scratch --data a b --val-data c --val-every 5 --val-batches 7 --order "
      "sequential "
      "--batch 12 --seq 128 --micro-batch 3 --steps 0 --optimizer adamw --lr 1e-3 --min-lr 1e-4 --warmup 9 "
      "--lr-schedule linear --weight-decay 0 --beta1 0 --beta2 0.5 --eps 1e-6 --clip 0 --precision fp16 "
      "--seed 18446744073709551615 --device reference --gpu-mem 1GiB --host-mem 50% --nvme-mem 2GB "
      "--nvme-dir /x "
      "--threads 3 --recompute none --io uring --machine m.json --out d --metrics m.jsonl --resume auto "
      "--checkpoint-every 4 --keep 1 --gpus 1");
  EXPECT_TRUE(o.model.from_scratch);
  EXPECT_EQ(o.data.train, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.data.validation, std::vector<std::string>{"c"});
  EXPECT_EQ(o.data.val_every, 5);
  EXPECT_EQ(o.data.val_batches, 7);
  EXPECT_EQ(o.data.order, RowOrder::sequential);
  EXPECT_EQ(o.batch.batch, 12);
  EXPECT_EQ(o.batch.sequence, 128);
  EXPECT_EQ(o.batch.micro_batch, 3);
  EXPECT_EQ(o.batch.steps, 0);
  EXPECT_EQ(o.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(o.optimizer.min_learning_rate, 1e-4);
  EXPECT_EQ(o.optimizer.warmup.steps, 9);
  EXPECT_EQ(o.optimizer.schedule, Schedule::linear);
  EXPECT_EQ(o.optimizer.weight_decay, 0);
  EXPECT_EQ(o.optimizer.beta1, 0);
  EXPECT_EQ(o.optimizer.beta2, 0.5);
  EXPECT_EQ(o.optimizer.epsilon, 1e-6);
  EXPECT_EQ(o.optimizer.clip, 0);
  EXPECT_EQ(o.numbers.precision, DType::f16);
  EXPECT_EQ(o.numbers.seed, UINT64_MAX);
  EXPECT_EQ(o.memory.device.kind, DeviceKind::reference);
  EXPECT_EQ(o.memory.gpu.bytes, uint64_t{1} << 30);
  EXPECT_EQ(o.memory.host.percent, 50);
  EXPECT_EQ(o.memory.nvme.bytes, 2'000'000'000u);
  EXPECT_EQ(o.memory.nvme_directories, std::vector<std::string>{"/x"});
  EXPECT_EQ(o.memory.threads, 3);
  EXPECT_EQ(o.memory.recompute, Recompute::none);
  EXPECT_EQ(o.memory.io, &kUringBackend);
  EXPECT_EQ(o.memory.machine, "m.json");
  EXPECT_EQ(o.run.metrics, "m.jsonl");
  EXPECT_EQ(o.run.resume, "auto");
  EXPECT_EQ(o.run.checkpoint_every.steps, 4);
  EXPECT_EQ(o.run.keep, 1);
  EXPECT_TRUE(is_given(o, "seed"));
  EXPECT_FALSE(is_given(o, "config"));
}

TEST(CommandLine, AWordMayStandForItsOption) {
  EXPECT_EQ(options_of("completion fish").completion.shell, Shell::fish);
  EXPECT_EQ(options_of("completion --shell zsh").completion.shell, Shell::zsh);
  EXPECT_EQ(remedy("completion tcsh"), "Choose one of: bash, zsh, fish.");
  EXPECT_EQ(refusal("completion"), "`sluice completion` needs --shell.");
  EXPECT_EQ(remedy("completion"), "Add --shell bash|zsh|fish, or see `sluice completion --help`.");
  EXPECT_EQ(refusal("completion bash zsh"), "--shell has 2 values.");
}

TEST(CommandLine, OtherVerbsTakeTheirOwnOptions) {
  const ParsedCommand plan = parse("plan --model gpt2 --text");
  EXPECT_EQ(plan.verb, Verb::plan);
  EXPECT_TRUE(plan.options.print.text);
  const ParsedCommand eval = parse("eval --from run --data v.bin --json --host-mem 1GiB");
  EXPECT_EQ(eval.verb, Verb::eval);
  EXPECT_EQ(eval.options.transfer.from, "run");
  EXPECT_TRUE(eval.options.print.json);
  const ParsedCommand exporting = parse("export --from run --to dir --dtype fp32");
  EXPECT_EQ(exporting.verb, Verb::export_run);
  EXPECT_EQ(exporting.options.transfer.dtype, DType::f32);
  EXPECT_FALSE(parse("export --from run --to dir").options.transfer.dtype);
  EXPECT_EQ(refusal("plan --model gpt2 --from run"), "--from is not an option of `sluice plan`.");
  EXPECT_EQ(remedy("plan --model gpt2 --from run"), "See `sluice plan --help`.");
  EXPECT_EQ(remedy("plan --model gpt2 --epochs 2"),
            "Leave it out: `plan` reads no data and writes no run. See `sluice plan --help`.");
}

TEST(CommandLine, UnknownWordsGetTheNearestSuggestion) {
  EXPECT_EQ(refusal("trian"), "`trian` is not a verb.");
  EXPECT_NE(remedy("trian").find("Did you mean train?"), std::string::npos) << remedy("trian");
  EXPECT_EQ(refusal(kTrain + "--bacth 8"), "`--bacth` is not an option.");
  EXPECT_EQ(remedy(kTrain + "--bacth 8"), "Did you mean --batch? See `sluice train --help`.");
  EXPECT_EQ(remedy(kTrain + "--hostmem=3GiB"), "Did you mean --host-mem? See `sluice train --help`.");
  EXPECT_EQ(remedy(kTrain + "--xyzzy"), "See `sluice train --help`.");
  EXPECT_EQ(refusal("train extra"), "`extra` is not expected here.");
  EXPECT_EQ(refusal(kTrain + "-- extra"), "`extra` is not expected here.");
  EXPECT_EQ(refusal("--model gpt2"), "`--model` stands where the verb should be.");
  EXPECT_EQ(refusal(""), "No verb is given.");
  EXPECT_EQ(refusal(kTrain + "--precision bf61"), "`bf61` is not a value of --precision.");
  EXPECT_EQ(remedy(kTrain + "--precision bf61"), "Choose one of: bf16, fp16, fp32.");
  EXPECT_EQ(remedy(kTrain + "--recompute some"), "Choose one of: none, cheap, products, all, or auto.");
  EXPECT_EQ(remedy(kTrain + "--waves two"), "Write --waves as in 12, or auto.");
}

TEST(CommandLine, NamesOfOtherToolsAreTranslated) {
  const std::string see = " See `sluice train --help`.";
  EXPECT_EQ(refusal(kTrain + "--learning-rate 1e-3"), "`--learning-rate` is not an option.");
  const struct {
    const char *elsewhere, *here;
  } names[] = {{"learning-rate", "lr"},
               {"learning_rate", "lr"},
               {"batch-size", "batch"},
               {"gpu-memory", "gpu-mem"},
               {"output", "out"},
               {"lr-scheduler", "lr-schedule"},
               {"max_steps", "steps"},
               {"grad-clip", "clip"},
               {"warmup-steps", "warmup"},
               {"block-size", "seq"},
               {"save-steps", "checkpoint-every"},
               {"eval-interval", "val-every"}};
  for (const auto& [elsewhere, here] : names)
    EXPECT_EQ(remedy(kTrain + "--" + elsewhere + "=1"),
              std::string("It is called --") + here + " here." + see);
  EXPECT_EQ(remedy(kTrain + "--fp16"), "Give the data type as a value, as in --precision bf16." + see);
  for (const auto& [elsewhere, begin] : {std::pair{"tp", "Tensor parallelism is not there: "},
                                         {"dpo", "Preference and reinforcement learning (DPO, "},
                                         {"load-in-4bit", "Quantised weights are not there. "},
                                         {"load_in_4bit", "Quantised weights are not there. "},
                                         {"deepspeed", "Leave it out: --zero says what ranks share, "},
                                         {"offload-optimizer", "Leave it out: what does not fit into "}})
    EXPECT_TRUE(remedy(kTrain + "--" + elsewhere).starts_with(begin)) << remedy(kTrain + "--" + elsewhere);
  // another verb has an option of that name
  EXPECT_EQ(refusal(kTrain + "--dtype fp32"), "--dtype is not an option of `sluice train`.");
  EXPECT_EQ(remedy(kTrain + "--dtype fp32"), "It is called --precision here." + see);
  EXPECT_EQ(remedy("doctor --learning-rate 1"), "See `sluice doctor --help`.");
}

TEST(CommandLine, NumbersAreReadWhole) {
  for (const char* text :
       {"12abc", "abc", "1.5", "1e3", "0x10", "+3", "99999999999999999999", "1,000", "true"})
    EXPECT_NE(refusal(kTrain + "--steps " + text).find("--steps"), std::string::npos) << text;
  for (const char* text : {"12abc", "nan", "inf", "-inf", "1e999", "0x1p3", "1,5", ".", "e5", "--3"})
    EXPECT_NE(refusal(kTrain + "--lr=" + text).find("--lr"), std::string::npos) << text;
  for (const char* text : {"-1", "18446744073709551616", "1.0", "auto"})
    EXPECT_NE(refusal(kTrain + "--seed " + text).find("--seed"), std::string::npos) << text;
  for (const char* text : {"-1", "-1GiB", "1.5", "99999999TiB", "12abc", "0%", "101%"})
    EXPECT_NE(refusal(kTrain + "--host-mem " + text).find("--host-mem"), std::string::npos) << text;
  EXPECT_NE(refusal({"train", "--steps", " 5"}), "accepted");
  EXPECT_NE(refusal({"train", "--steps", ""}), "accepted");
}

TEST(CommandLine, RangesAreChecked) {
  const char* const kRefused[] = {
      "--steps -1", "--batch 0",    "--batch -4",      "--seq 0",     "--micro-batch 0",
      "--lr 0",     "--lr -1e-3",   "--min-lr -1",     "--warmup -1", "--weight-decay -0.1",
      "--beta1 1",  "--beta1 -0.1", "--beta2 1",       "--eps 0",     "--eps 1e-46",
      "--clip -1",  "--threads 0",  "--threads 99999", "--keep 0",    "--val-every -1"};
  for (const char* arguments : kRefused) {
    const std::string option = words(arguments).front();
    EXPECT_NE(refusal(kTrain + arguments).find(option), std::string::npos) << arguments;
  }
  EXPECT_EQ(refusal(kTrain + "--beta2 1"), "--beta2 is 1.");
  EXPECT_EQ(remedy(kTrain + "--beta2 1"), "Give --beta2 a value at least 0 and below 1.");
  EXPECT_EQ(remedy(kTrain + "--lr 0"), "Give --lr a value above 0.");
  EXPECT_EQ(remedy(kTrain + "--batch 0"), "Give --batch a whole number from 1 to 1000000000.");
  EXPECT_EQ(remedy(kTrain + "--threads 1025"), "Give --threads a whole number from 1 to 1024.");
  EXPECT_EQ(remedy(kTrain + "--zero 4"), "Give --zero a whole number from 0 to 3, or auto.");
}

TEST(CommandLine, WhatBelongsTogetherIsDemanded) {
  EXPECT_EQ(refusal("train --data a --out d"), "`sluice train` needs --model.");
  EXPECT_EQ(refusal("train --model gpt2 --out d"), "`sluice train` needs --data.");
  EXPECT_EQ(refusal("train --model gpt2 --data a"), "`sluice train` needs --out.");
  EXPECT_EQ(refusal("train --data a"), "`sluice train` needs --model and --out.");
  EXPECT_EQ(refusal("train"), "`sluice train` needs --model, --data and --out.");
  EXPECT_EQ(remedy("train"), "Add --model MODEL --data FILE... --out DIR, or see `sluice train --help`.");
  EXPECT_EQ(refusal("train --resume auto"), "`sluice train` needs --out.");
  EXPECT_EQ(refusal("plan"), "`sluice plan` needs --model.");
  EXPECT_EQ(refusal("export"), "`sluice export` needs --from and --to.");
  EXPECT_EQ(refusal("eval --from r"), "`sluice eval` needs --data.");
  EXPECT_EQ(refusal("eval --data d"), "`sluice eval` needs --from.");
  EXPECT_EQ(refusal("export --from r"), "`sluice export` needs --to.");
  EXPECT_EQ(refusal(kTrain + "--val-every 5"), "--val-every needs --val-data or --val-split.");
  EXPECT_EQ(refusal(kTrain + "--keep-best"), "--keep-best needs --val-data or --val-split.");
  EXPECT_EQ(refusal(kTrain + "--epochs 2 --steps 9"), "--epochs and --steps exclude each other.");
  EXPECT_EQ(refusal(kTrain + "--epochs 0 --steps 9"), "accepted");
  EXPECT_EQ(refusal(kTrain + "--val-data v.bin --val-split 2%"),
            "--val-data and --val-split exclude each other: a run validates on one set.");
  EXPECT_EQ(refusal(kTrain + "--nvme-mem 5GiB"), "--nvme-mem needs --nvme-dir.");
  EXPECT_EQ(refusal(kTrain + "--lr 1e-4 --min-lr 1e-3"), "--min-lr 0.001 is above --lr 0.0001.");
  EXPECT_EQ(refusal(kTrain + "--lr-schedule constant --min-lr 1e-6"),
            "--min-lr has no effect with --lr-schedule constant.");
  EXPECT_EQ(refusal(kTrain + "--compress-after 5"), "--compress-after needs --compress.");
  EXPECT_EQ(refusal("plan --model gpt2 --json --text"), "--json and --text exclude each other.");
  EXPECT_EQ(refusal("plan --model gpt2 --text --explain"), "--explain and --text exclude each other.");
  for (const std::string other : {"text", "explain"})
    EXPECT_EQ(refusal("plan --model gpt2 --sweep batch=1:2 --" + other),
              "--sweep and --" + other + " exclude each other.");
  EXPECT_EQ(refusal("plan --model gpt2 --ranks-per-node 2"), "--ranks-per-node needs --ranks.");
  EXPECT_EQ(refusal("plan --model gpt2 --ranks 4 --gpus 4"), "--gpus and --ranks exclude each other.");
  EXPECT_EQ(refusal("plan --model gpt2 --batch 12 --ranks 12 --ranks-per-node 8"),
            "--ranks 12 is not a multiple of --ranks-per-node 8.");
  EXPECT_EQ(refusal("plan --model gpt2 --ranks 0"), "--ranks is 0.");
  EXPECT_EQ(refusal("plan --model gpt2 --ranks 3"), "--batch 8 is not a multiple of the 3 ranks.");
  EXPECT_EQ(remedy(kTrain + "--batch 8 --micro-batch 3"), "The nearest multiple is --batch 9.");
  EXPECT_EQ(remedy(kTrain + "--batch 8 --micro-batch 3 --gpus 2"), "The nearest multiple is --batch 6.");
  EXPECT_EQ(remedy(kTrain + "--batch 2 --micro-batch 5"), "The nearest multiple is --batch 5.");
  EXPECT_EQ(refusal(kTrain + "--lr 1 --lr 2"), "--lr has 2 values.");
  EXPECT_EQ(refusal(kTrain + "--host-mem 1GiB --host-mem 2GiB"), "--host-mem has 2 values.");
  EXPECT_EQ(refusal(kTrain + "--batch="), "--batch has no value.");
  EXPECT_EQ(refusal(kTrain + "--batch"), "--batch has no value.");
  EXPECT_EQ(refusal(kTrain + "--batch --steps 3"), "--batch has no value.");
  EXPECT_EQ(refusal(kTrain + "--val-data --steps 3"), "--val-data has no value.");
  EXPECT_NE(refusal("train --data"), "accepted");
  EXPECT_EQ(refusal({"plan", "--model", ""}), "--model is empty.");
}

TEST(CommandLine, SeveralDirectories) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(options_of(kTrain + "--nvme-dir a,b/c").memory.nvme_directories, (Paths{"a", "b/c"}));
  EXPECT_EQ(options_of(kTrain + "--nvme-dir a --nvme-dir b").memory.nvme_directories, (Paths{"a", "b"}));
  for (const char* bad : {"a,", ",a", "a,,b", ","})
    EXPECT_EQ(refusal(kTrain + "--nvme-dir " + bad), "--nvme-dir is empty.");
  for (const char* verb : {"train --model gpt2 --data a --out d", "plan --model gpt2", "doctor"})
    EXPECT_EQ(refusal(std::string(verb) + " --nvme-dir /x/a,b,/x/a"), "--nvme-dir names /x/a twice.");
  EXPECT_EQ(refusal(kTrain + "--nvme-dir /x/a,/x/./y/..//a/"), "--nvme-dir names /x/./y/..//a/ twice.");
  std::string many = "0";
  for (int i = 1; i < 64; ++i) many += "," + std::to_string(i);
  EXPECT_EQ(options_of(kTrain + "--nvme-dir " + many).memory.nvme_directories.size(), 64u);
  EXPECT_EQ(refusal(kTrain + "--nvme-dir " + many + ",64"), "--nvme-dir names 65 directories.");
}

TEST(CommandLine, OnlyPlanTakesATierWithoutDirectories) {
  EXPECT_TRUE(options_of("plan --model gpt2 --nvme-mem 2TB").memory.nvme_directories.empty());
  for (const char* bad : {"plan --model gpt2 --nvme-mem auto", "plan --model gpt2 --nvme-mem 50%",
                          "eval --from a --data b --nvme-mem 2TB"})
    EXPECT_EQ(refusal(bad), "--nvme-mem needs --nvme-dir.") << bad;
}

TEST(CommandLine, DoctorTakesSeveralDirectories) {
  const ParsedCommand command = parse("doctor --json --nvme-dir a,b");
  EXPECT_EQ(command.verb, Verb::doctor);
  EXPECT_EQ(command.options.memory.nvme_directories, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(command.options.print.json);
  EXPECT_EQ(refusal("doctor --gpu-mem 1GiB"), "--gpu-mem is not an option of `sluice doctor`.");
}

TEST(CommandLine, OneOfSeveralGpus) {
  EXPECT_EQ(options_of(kTrain + "--device cuda").memory.device.ordinal, 0);
  EXPECT_EQ(options_of(kTrain + "--device cuda:3").memory.device.ordinal, 3);
  EXPECT_EQ(options_of(kTrain + "--device cuda:3").memory.device.kind, DeviceKind::cuda);
  for (const char* device : {"cuda:", "cuda:-1", "cuda:64", "cuda:1x", "cuda:99999999999999999999", "cpu:0"})
    EXPECT_EQ(refusal(kTrain + "--device " + device),
              "`" + std::string(device) + "` for --device names no device.");
}

TEST(CommandLine, HelpAndVersionAreTexts) {
  EXPECT_EQ(parse("--version").text.substr(0, 7), "sluice ");
  EXPECT_EQ(parse("--help").text, program_help());
  EXPECT_EQ(parse("help").text, program_help());
  for (const VerbRow& row : verb_table()) {
    const std::string verb = verb_name(row.verb), text = parse(verb + " --help").text;
    EXPECT_EQ(text, verb_help(row.verb, HelpExtent::first));
    EXPECT_EQ(parse(verb + " --help-all").text, verb_help(row.verb, HelpExtent::all));
    EXPECT_EQ(parse("help " + verb).text, text);
    EXPECT_NE(program_help().find("\n  " + verb + " "), std::string::npos);
  }
  EXPECT_EQ(parse("help --man").text, manual());
  const std::string first = verb_help(Verb::train, HelpExtent::first);
  EXPECT_EQ(parse("train --lr abc --help").text, first);  // help wins over mistakes
}

TEST(CommandLine, TheDocumentsShowEveryVerb) {
  std::string text = read_text_file("README.md", 1 << 20);
  for (const auto& entry : std::filesystem::directory_iterator("docs"))
    if (entry.path().extension() == ".md") text += read_text_file(entry.path(), 1 << 20);
  for (const VerbRow& row : verb_table())
    EXPECT_NE(text.find(std::string("sluice ") + verb_name(row.verb) + " "), std::string::npos)
        << "neither README.md nor docs/ has an example of sluice " << verb_name(row.verb);
}

TEST(CommandLine, HelpNamesEveryOptionAndFitsThePage) {
  for (const VerbRow& verb : verb_table())
    for (const HelpExtent extent : {HelpExtent::first, HelpExtent::all}) {
      const std::string text = verb_help(verb.verb, extent);
      EXPECT_NE(text.find("\nexamples\n"), std::string::npos);
      for (const OptionRow& row : option_table()) {
        if (!(row.verbs & verb_bit(verb.verb))) continue;
        EXPECT_NE(text.find(std::string("--") + row.name), std::string::npos) << row.name;
      }
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), 100u) << line;
        EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
      }
    }
}

TEST(CommandLine, ABudgetHasAUnit) {
  EXPECT_EQ(refusal(kTrain + "--host-mem 64"), "`64` for --host-mem has no unit, and would be bytes.");
}

TEST(CommandLine, ExamplesOfTheHelpParse) {
  for (const VerbRow& row : verb_table()) {
    int examples = 0;
    std::string text = verb_help(row.verb);
    text = text.substr(text.find("\nexamples\n"));
    for (size_t at; (at = text.find("\\\n")) != std::string::npos;) text.replace(at, 2, " ");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  sluice ")) continue;
      std::vector<std::string> arguments = words(line.substr(0, line.find_first_of("#|>")));
      arguments.erase(arguments.begin());
      examples += parse(arguments).verb == row.verb;
    }
    EXPECT_GT(examples, 0) << verb_name(row.verb);
  }
}

// Errors list the words that an option accepts. The help says what each word means.
TEST(CommandLine, HelpNamesEveryWordOfAnOption) {
  const std::string list = "Choose one of: ";
  int options = 0;
  for (const OptionRow& row : option_table()) {
    Options scratch;
    std::string known;
    try {
      if (*row.value != '\0' && !std::holds_alternative<Size*>(row.field(scratch)))
        set_option(scratch, row, {"no-such-word"});
    } catch (const Error& error) {
      known = error.remedy();
    }
    if (!known.starts_with(list)) continue;
    ++options;
    std::replace(known.begin(), known.end(), ',', ' ');
    std::replace(known.begin(), known.end(), '.', ' ');
    for (const std::string& word : words(known.substr(list.size())))
      EXPECT_NE(option_help(row).find(word), std::string::npos)
          << "the help of --" << row.name << " lacks " << word;
  }
  EXPECT_GT(options, 5);
}

TEST(CommandLine, AProfileHasOptionsOfItsOwnAndThoseOfTrain) {
  const ParsedCommand command =
      parse("profile --steps 12 --out r -- --model gpt2 --data x --steps 3 --batch 4");
  EXPECT_EQ(command.verb, Verb::profile);
  EXPECT_EQ(command.options.profile.steps, 12);
  EXPECT_EQ(command.options.profile.out, "r");
  EXPECT_EQ(command.options.profile.command, words("--model gpt2 --data x --steps 3 --batch 4"));
  EXPECT_EQ(command.options.batch.batch, 4);
  EXPECT_EQ(command.options.batch.steps, 3);
  EXPECT_TRUE(command.options.run.out.empty());  // none needed: a profile saves nothing
  EXPECT_EQ(parse("profile --out r -- train --model gpt2 --data x").options.model.model, "gpt2");
  const std::string own = "profile --out r ", rest = "-- --model gpt2 --data x";
  EXPECT_EQ(refusal("profile --out r"), "`sluice profile` needs `--` and the options of train.");
  EXPECT_EQ(refusal("profile " + rest), "`sluice profile` needs --out before `--`.");
  EXPECT_EQ(refusal(own + "--steps 3 " + rest), "--steps is 3.");
  EXPECT_EQ(refusal(own + "--steps 1001 " + rest), "--steps is 1001.");
  EXPECT_EQ(refusal(own + "--batch 4 " + rest), "--batch is not an option of `sluice profile`.");
  EXPECT_EQ(refusal(own + rest + " --json"), "--json is not an option of `sluice train`.");
  EXPECT_EQ(refusal(own + "-- --model gpt2"), "`sluice profile` needs --data.");
  EXPECT_EQ(refusal(own + "--"), "`sluice profile` needs --model and --data.");
}

}  // namespace
}  // namespace sluice
