#include "engine/run/start/text_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "engine/base/error.h"
#include "engine/run/options/named_values.h"
#include "engine/run/start/generation_request.h"
#include "engine/run/start/run_data.h"
#include "models/files/data_source.h"
#include "models/prepare/prepare.h"
#include "models/text/samples/prompt_file.h"

namespace sluice {

namespace {

// The most tokens of a prompt and its answer together. The longest prompt then has room for a whole answer.
int64_t context_of(const std::vector<std::vector<uint32_t>>& prompts, const Options& options,
                   const ModelConfig& config) {
  const int64_t context = std::max(config.context, options.batch.sequence.value_or(0));
  size_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<uint32_t>& prompt = prompts[i];
    if (prompt.size() >= static_cast<size_t>(context))
      throw Error(ExitCode::usage,
                  fmt::format("Prompt {} of --sample-prompts has {} tokens, and the model's context is {}.",
                              i + 1, prompt.size(), context),
                  "Shorten it.");
    const uint32_t largest = *std::ranges::max_element(prompt);
    if (largest >= static_cast<uint64_t>(config.vocabulary))
      throw Error(ExitCode::usage,
                  fmt::format("Prompt {} of --sample-prompts has token {}, and the model has {} tokens.",
                              i + 1, largest, config.vocabulary),
                  "Give the --tokenizer that the data were made with.");
    longest = std::max(longest, prompt.size());
  }
  return std::min(context, static_cast<int64_t>(longest) + options.sample.tokens);
}

// Whether tokens are bytes: there is no tokenizer, and training reads text as TokenData does.
bool are_bytes(const Options& options, const std::string& directory, const ModelConfig& config) {
  const DataOptions& data = options.data;
  if (!options.text.tokenizer.empty() || has_tokenizer(directory) || config.vocabulary != kTextVocabulary)
    return false;
  if (data.type != TokenType::automatic) return data.type == TokenType::text;
  return !data.train.empty() && std::ranges::all_of(files_of(sources_of(data.train)), is_text_file);
}

}  // namespace

TextModel open_text(const Options& options, const std::string& directory, const ModelConfig& config) {
  const std::string& end = options.text.end_token;
  if (are_bytes(options, directory, config)) {
    if (!end.empty())
      throw Error(ExitCode::usage, "--eos-token names a token, and the tokens of this model are bytes.",
                  "Leave it out.");
    return text_model_of_bytes(options.text.chat_template);
  }
  const std::string& from = tokenizer_of(options, directory);
  if (!has_tokenizer(from))
    throw Error(
        ExitCode::usage, "There is no tokenizer" + (from.empty() ? "." : " in " + printable(from) + "."),
        "Add --tokenizer DIR, with a tokenizer.json or tokenizer.model. A model that was trained on bytes of "
        "text has none: name its run, which speaks in bytes.");
  TextModel text = open_text_model(from, options.text.chat_template);
  if (!end.empty()) set_end_token(text, end);
  return text;
}

std::shared_ptr<const SamplePrompts> with_ends(const std::shared_ptr<const SamplePrompts>& samples,
                                               const std::vector<uint32_t>& ends) {
  if (!samples || ends.empty()) return samples;
  auto more = std::make_shared<SamplePrompts>(*samples);
  more->ends = ends;
  return more;
}

// In memory, a vocabulary and its merges take four to six times their file. Where bytes are the tokens, there
// is no file, but tables of all characters, and of texts that an encoder met, take 4 MiB.
uint64_t tokenizer_table_bytes(const Options& options, const std::string& directory,
                               const ModelConfig& config) {
  constexpr uint64_t kTimes = 8, kOfBytes = 5 << 20;
  if (are_bytes(options, directory, config)) return kOfBytes;
  uint64_t bytes = 0;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    std::error_code missing;
    const std::filesystem::path path = std::filesystem::path(tokenizer_of(options, directory)) / name;
    const auto of_file = std::filesystem::file_size(path, missing);
    if (!missing) bytes += kTimes * of_file;
  }
  return bytes;
}

SampleMaker sample_maker(const Options& options, const TextModel& text) {
  const TextOptions& t = options.text;
  return {text, {TrainOn::all, t.control_tokens, template_values_json(t.template_values)}};
}

std::shared_ptr<const SamplePrompts> open_samples(const Options& options, const std::string& directory,
                                                  const ModelConfig& config) {
  const SampleOptions& o = options.sample;
  if (o.every == 0) return nullptr;
  const auto text = std::make_shared<const TextModel>(open_text(options, directory, config));
  SampleMaker maker = sample_maker(options, *text);
  SamplePrompts out;
  out.tokens = read_prompts(o.prompts, maker);
  for (const std::string& remark : remarks_on({}, maker.take_notes()))
    out.notes.push_back("Of --sample-prompts: " + remark + ".");
  if (out.tokens.size() > kSamplePromptsMax)
    throw Error(ExitCode::usage,
                fmt::format("{} has {} prompts, and samples are for people to read.", printable(o.prompts),
                            out.tokens.size()),
                fmt::format("Give {} at most.", kSamplePromptsMax));
  const auto sequences = std::min<int64_t>(kPromptsAtOnce, std::ssize(out.tokens));
  out.sizes = {sequences, context_of(out.tokens, options, config),
               std::max<int64_t>(1, kChunkTokens / sequences)};
  out.tokens_max = o.tokens;
  out.sampling = {.temperature = o.temperature, .seed = options.numbers.seed, .soft_cap = config.logits_cap};
  out.ends = text->ends;
  out.text_of = [text](const std::vector<uint32_t>& tokens) { return text->tokenizer.decode(tokens, true); };
  out.table_bytes = tokenizer_table_bytes(options, directory, config);
  return std::make_shared<const SamplePrompts>(std::move(out));
}

}  // namespace sluice
