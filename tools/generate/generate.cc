#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/clock.h"
#include "engine/run/generate/generator.h"
#include "engine/run/generate/stop_texts.h"
#include "engine/run/options/named_values.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/devices.h"
#include "engine/run/start/generation_request.h"
#include "engine/run/start/planning.h"
#include "engine/run/start/session_start.h"
#include "engine/run/start/text_start.h"
#include "engine/run/start/weights_start.h"
#include "models/prepare/prepare.h"
#include "models/prepare/record_memory.h"
#include "models/text/samples/prompt_file.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/stop_signals.h"
#include "tools/generate/line_reader.h"

namespace sluice {

namespace {

const char* word_of(Ending ending) {
  switch (ending) {
    case Ending::none:
    case Ending::stopped:
      return "stopped";
    case Ending::token:
      return "end";
    case Ending::text:
      return "stop";
    case Ending::length:
      return "length";
    case Ending::context:
      return "context";
  }
  return "";
}

// Thrown when output cannot be written: nobody reads it, so the rest need not be computed. main() finds out
// whether that is a failure.
struct Unheard {};

void flush(std::FILE* out) {
  if (std::fflush(out) != 0) throw Unheard();
}

// Text as a person may see it: on a terminal, without control characters, which could be commands to it.
class Voice {
 public:
  explicit Voice(std::FILE* out) : out_(out), is_terminal_(screen_of(out).is_terminal) {}
  void say(std::string text) const {
    if (is_terminal_)
      std::erase_if(text, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
      });
    std::fwrite(text.data(), 1, text.size(), out_);
    flush(out_);
  }

 private:
  std::FILE* out_;
  bool is_terminal_;
};

// What the modes of the verb share.
struct Speaker {
  Generator& generator;
  const TextModel& text;
  SampleMaker& maker;
  const GenerateOptions& options;
  std::FILE* out;
};

// Whether an answer goes on, by its stop texts. Stop texts may spell control tokens.
class Stopping {
 public:
  explicit Stopping(const Speaker& speaker)
      : stream_(speaker.text.tokenizer, false), stops_(speaker.options.stops) {}
  bool goes_on(uint32_t token) { return !stops_.found(stream_.push(token)); }

 private:
  TextStream stream_;
  StopTexts stops_;
};

// Streams the answer, and returns its text.
std::string stream_answer(const Speaker& speaker, const Prompt& prompt) {
  const Voice voice(speaker.out);
  TextStream stream(speaker.text.tokenizer, true);
  Stopping stopping(speaker);
  std::string all;
  const auto say = [&](std::string part) {
    all += part;
    voice.say(std::move(part));
  };
  speaker.generator.answer(
      {&prompt, 1}, speaker.options.max_tokens, true,
      [&](size_t, uint32_t token) {
        say(stream.push(token));
        return stopping.goes_on(token);
      },
      stop_flag());
  say(stream.finish());
  voice.say("\n");
  return all;
}

std::vector<uint32_t> conversation_prompt(SampleMaker& maker, const nlohmann::ordered_json& messages) {
  try {
    return maker.prompt(Conversation{std::make_shared<const nlohmann::ordered_json>(messages), nullptr, {}});
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("The conversation cannot go on: {}.", error.what()),
                remedy_of(error, "Begin a new one, or give another --chat-template."));
  }
}

nlohmann::ordered_json message(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

void converse(const Speaker& speaker, uint64_t longest) {
  LineReader lines(STDIN_FILENO, stop_flag(), longest);
  const bool asks = screen_of(speaker.out).is_terminal && isatty(STDIN_FILENO);
  auto messages = nlohmann::ordered_json::array();
  for (uint64_t turn = 0;; ++turn) {
    if (asks) Voice(speaker.out).say("> ");
    const std::optional<std::string> line = lines.next();
    if (!line) return;
    if (line->empty()) continue;
    messages.push_back(message(*line));
    const std::string answer = stream_answer(speaker, {conversation_prompt(speaker.maker, messages), turn});
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
}

// Prints a line of JSON for each prompt that has an answer.
void answer_all(const Speaker& speaker, std::vector<std::vector<uint32_t>> prompts) {
  const auto at_once = static_cast<size_t>(speaker.generator.sequences());
  for (size_t first = 0; first < prompts.size() && !stop_flag(); first += at_once) {
    std::vector<Prompt> some;
    for (size_t i = first; i < std::min(prompts.size(), first + at_once); ++i)
      some.push_back({std::move(prompts[i]), i});
    std::vector<Stopping> stopping;
    for (size_t i = 0; i < some.size(); ++i) stopping.emplace_back(speaker);
    const std::vector<Answer> answers = speaker.generator.answer(
        some, speaker.options.max_tokens, false,
        [&](size_t i, uint32_t token) { return stopping[i].goes_on(token); }, stop_flag());
    for (size_t i = 0; i < answers.size(); ++i) {
      const nlohmann::ordered_json line{{"answer", speaker.text.tokenizer.decode(answers[i].tokens, true)},
                                        {"ending", word_of(answers[i].ending)},
                                        {"prompt_tokens", some[i].tokens.size()},
                                        {"answer_tokens", answers[i].tokens.size()}};
      std::fprintf(speaker.out, "%s\n",
                   line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    }
    flush(speaker.out);
  }
}

// The limit on texts, by the memory that --host-mem leaves at the time of the call.
RecordLimit limit_of_texts(const MemoryOptions& memory) {
  const auto [left, taken] = bytes_for_records(memory, 1);
  return RecordMemory(left).limit(taken);
}

// The prompts; none for a conversation on standard input.
std::vector<std::vector<uint32_t>> prompts_of(const Options& options, SampleMaker& maker) {
  if (!options.generate.prompts.empty())
    return read_prompts(options.generate.prompts, maker, limit_of_texts(options.memory));
  if (options.generate.chat && !is_given(options, "prompt")) return {};
  if (options.generate.chat)
    return {conversation_prompt(maker, nlohmann::ordered_json::array({message(options.generate.prompt)}))};
  return {maker.prompt(options.generate.prompt)};
}

// Host memory that prompts take, with the overhead of their vectors.
uint64_t bytes_of(const std::vector<std::vector<uint32_t>>& prompts) {
  constexpr uint64_t kBeside = 96;
  uint64_t bytes = 0;
  for (const std::vector<uint32_t>& prompt : prompts) bytes += kBeside + prompt.size() * sizeof prompt[0];
  return bytes;
}

void print_rates(const Generator& generator, double seconds) {
  show(stderr, fmt::format("sluice: {} tokens read and {} written in {:.1f} s\n", generator.tokens_read(),
                           generator.tokens_drawn(), seconds));
}

}  // namespace

ExitCode run_generate(Options options, std::FILE* out) {
  WeightsStart start = open_weights_start(options, Verb::generate);
  const TextModel text = open_text(options, text_directory(start), start.source.config);
  SampleMaker maker = sample_maker(options, text);
  if (options.generate.chat && !text.chat)
    throw Error(ExitCode::usage, "--chat needs a chat template, and the tokenizer has none.",
                "Give --chat-template FILE, or --prompt for a text.");
  for (std::string& stop : options.generate.stops) stop = unescaped(stop);
  for (const std::string& note : apply_generation_settings(
           options, read_generation_settings(text_directory(start)), start.source.config.context))
    start.notes.push_back(note);
  std::vector<std::vector<uint32_t>> prompts = prompts_of(options, maker);
  for (const std::string& remark : remarks_on({}, maker.take_notes()))
    start.notes.push_back("Of the prompts: " + remark);
  const int64_t wanted = is_given(options, "batch") ? options.batch.batch : kPromptsAtOnce;
  const int64_t sequences = std::min<int64_t>(wanted, std::max<int64_t>(1, std::ssize(prompts)));
  const GenerationSizes sizes = generation_sizes(options, start.source.config, sequences);
  if (const auto note = length_note(start.source.config, sizes.context, "--max-context"))
    start.notes.push_back(*note);
  for (const std::vector<uint32_t>& prompt : prompts)
    check_prompt(prompt, sizes.context, start.source.config.vocabulary);
  const std::unique_ptr<Device> device = make_device(options.memory, resolve_threads(options.memory));
  Budgets budgets = resolve_budgets(options.memory, memory_limits(), true, accelerator_use(*device));
  budgets.reserve_table(start.source.table_bytes +
                        tokenizer_table_bytes(options, text_directory(start), start.source.config) +
                        bytes_of(prompts));
  const auto started = start_session(
      *device, budgets, session_options(options, budgets.threads),
      [&] {
        return plan_or_throw(
            generation_request(options, start.source.config, sizes, budgets, needs_of(*device)), budgets);
      },
      [&](const Plan& plan) { check_weights_start(start, plan.model); });
  Workers workers(budgets.threads);
  load(started->session, load_from(started->plan.model, source_of(start), workers));
  for (const std::string& note : start.notes) show(stderr, note + "\n");
  const GenerateOptions& g = options.generate;
  Generator generator(started->session,
                      {.temperature = g.temperature,
                       .top_k = g.top_k,
                       .top_p = g.top_p,
                       .min_p = g.min_p,
                       .repetition_penalty = g.repetition_penalty,
                       .seed = options.numbers.seed,
                       .soft_cap = start.source.config.logits_cap},
                      text.ends);
  const Speaker speaker{generator, text, maker, g, out};
  stop_on_signals("sluice: stopping.\n");
  const double begin = steady_seconds();
  try {
    if (prompts.empty())
      converse(speaker, limit_of_texts(options.memory).longest);
    else if (!g.prompts.empty())
      answer_all(speaker, std::move(prompts));
    else
      stream_answer(speaker, {std::move(prompts.front()), 0});
  } catch (const Unheard&) {
  }
  print_rates(generator, steady_seconds() - begin);
  return stop_flag() ? ExitCode::stopped : ExitCode::done;
}

}  // namespace sluice
