// `sluice prepare`: text and chats become samples of tokens, which are kept by their content.
#include "models/prepare/prepare.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/units.h"
#include "engine/run/start/budgets.h"
#include "engine/run/start/model_source.h"
#include "engine/run/start/run_data.h"
#include "engine/run/start/run_directory.h"
#include "models/files/data_source.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/stop_signals.h"
#include "tools/command/waiting.h"
#include "tools/prepare/request.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

// One line on stderr: rewritten on a terminal, else written now and then.
class ProgressLine {
 public:
  explicit ProgressLine(std::FILE* err) : err_(err), screen_(screen_of(err)) {}
  ~ProgressLine() { wipe(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show_progress(const PrepareProgress& p) {
    const double now = steady_seconds();
    if (p.reads != reads_) {
      begin_ = now, reads_ = p.reads, first_ = p.bytes;
    }
    if (now - said_ < (screen_.is_terminal ? 0.2 : 10) || now - begin_ < 1) return;
    said_ = now;
    const double rate = static_cast<double>(p.bytes - first_) / (now - begin_);
    std::string line = fmt::format("{} {:.0f} % of {}, {}/s", p.reads ? "reading" : "preparing",
                                   100.0 * static_cast<double>(p.bytes) / static_cast<double>(p.all),
                                   format_size(p.all), format_size(static_cast<uint64_t>(rate)));
    if (rate > 0) line += ", " + readable_seconds(static_cast<double>(p.all - p.bytes) / rate) + " left";
    if (!screen_.is_terminal) return show(err_, "sluice: " + line + "\n");
    line = line.substr(0, screen_.columns - 1);
    wipe();
    std::fprintf(err_, "\r%s", line.c_str());
    std::fflush(err_);
    shown_ = line.size();
  }

 private:
  void wipe() {
    if (shown_ > 0) std::fprintf(err_, "\r%*s\r", static_cast<int>(shown_), "");
    std::fflush(err_);
    shown_ = 0;
  }
  std::FILE* err_;
  Screen screen_;
  bool reads_ = false;
  uint64_t first_ = 0;
  double begin_ = steady_seconds(), said_ = 0;
  size_t shown_ = 0;
};

[[noreturn]] void cannot_write(const std::string& sentence, int error_number) {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw Error(is_full ? ExitCode::io : ExitCode::environment,
              sentence + ": " + std::strerror(error_number) + ".",
              is_full ? "Free some space, or name another directory with --cache."
                      : "Make it writable, or name another directory with --cache.");
}

// Waits while another process prepares the same set.
class SetLock {
 public:
  explicit SetLock(const std::string& directory)
      : fd_(open((fs::path(directory) / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_.get() < 0) cannot_write("Cannot write into " + printable(directory), errno);
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return;
    const Waiting waiting(stderr, "waiting for another process that prepares the same data");
    while (flock(fd_.get(), LOCK_EX) != 0)
      if (errno != EINTR)
        throw Error(ExitCode::environment,
                    "Cannot lock " + printable(directory) + ": " + std::strerror(errno) + ".",
                    "Name a directory of another file system with --cache.");
  }

 private:
  FileDescriptor fd_;
};

std::string made_directory(const std::string& cache, const std::string& name) {
  const fs::path path = fs::path(cache) / "prepared" / name;
  std::error_code error;
  fs::create_directories(path, error);
  if (error) cannot_write("Cannot make " + printable(path.string()), error.value());
  return path.string();
}

struct TokenizerPlace {
  std::string directory;
  int64_t vocabulary = 0;  // of the model; 0: not known
};

TokenizerPlace tokenizer_of(const Options& options) {
  TokenizerPlace place{options.text.tokenizer, options.text.vocabulary};
  if (!options.model.model.empty()) {
    const ModelSource source = resolve_model(options.model);
    if (place.vocabulary == 0) place.vocabulary = source.config.vocabulary;
    if (place.directory.empty()) place.directory = source.directory;
  }
  if (place.directory.empty())
    throw Error(ExitCode::usage, "There is no tokenizer: neither --tokenizer nor --model names a directory.",
                "Add --tokenizer DIR, with a tokenizer.json or tokenizer.model.");
  return place;
}

// Trained parts stand between [[ and ]].
std::string marked(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < sample.ids.size();) {
    size_t end = i;
    while (end < sample.ids.size() && sample.trained[end] == sample.trained[i]) ++end;
    const std::string part = tokenizer.decode(std::span(sample.ids).subspan(i, end - i), false);
    text += sample.trained[i] ? "[[" + part + "]]" : part;
    i = end;
  }
  return text;
}

// The text as printable() shows it, but with its line breaks kept.
std::string printable_lines(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += printable(text.substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return out;
}

std::string samples_text(const Preparation& preparation, int64_t count) {
  std::string text;
  int64_t number = 0;
  for (const Sample& sample : preparation.first_samples(static_cast<size_t>(count)))
    text += fmt::format("--- sample {}: {} tokens, {} trained, between [[ and ]]\n", ++number,
                        sample.ids.size(), sample.trained_tokens()) +
            printable_lines(marked(sample, preparation.text_model().tokenizer));
  return text;
}

std::string counted(uint64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

std::string summary(const PreparedCounts& c, const SampleNotes& notes, const LearnedEnds& ends) {
  std::string text = fmt::format(
      "{} of {}: {} tokens, {} of them trained ({:.1f} %)\n", counted(c.samples, "sample", "samples"),
      counted(c.records, "record", "records"), c.tokens, c.trained,
      100.0 * static_cast<double>(c.trained) / static_cast<double>(std::max<uint64_t>(c.tokens, 1)));
  for (const std::string& remark : remarks_on(c, notes)) text += remark + "\n";
  if (!ends.sentence.empty()) text += ends.sentence + "\n";
  return text;
}

nlohmann::ordered_json facts_of(const PreparedCounts& c, const SampleNotes& notes, const LearnedEnds& ends,
                                const std::string& directory) {
  return {{"directory", directory},
          {"records", c.records},
          {"samples", c.samples},
          {"tokens", c.tokens},
          {"ends", ends.ids},
          {"ends_note", ends.sentence},
          {"trained", c.trained},
          {"divided", c.divided},
          {"untrained", c.untrained},
          {"malformed", c.bad},
          {"unknown_characters", c.unknown_characters},
          {"spelled_control_tokens", c.spelled_controls},
          {"notes", nlohmann::ordered_json::parse(json_of(notes))}};
}

// Throws where most samples have no trained token: the masks are then not what the user means.
// `of`: what the sentence begins with where there are several sources; may be empty.
void check_counts(const PreparedCounts& c, const SampleNotes& notes, const std::string& of) {
  const uint64_t all = c.samples + c.untrained;
  if (all == 0 && c.bad > 0)
    throw Error(ExitCode::malformed_file,
                of + fmt::format("Every record is left out. The first is refused: {}.", notes.refusal),
                "Correct the records, or give others.");
  if (c.samples == 0 && c.untrained > 0 && c.untrained == notes.unwanted)
    throw Error(
        ExitCode::malformed_file,
        of + "All texts are empty, or say of the answers that are asked for that they are not to be trained.",
        "Give data with texts or answers that are to be trained.");
  if (c.samples == 0 || c.untrained - notes.unwanted > c.samples)
    throw Error(ExitCode::malformed_file,
                of + (all == 0 ? "The data hold no sample."
                               : fmt::format("Of {}, {} no trained token.",
                                             counted(all - notes.unwanted, "sample", "samples"),
                                             counted(c.untrained - notes.unwanted, "has", "have"))),
                all == 0 ? "Give data with records."
                         : "--train-on all trains every token: look at some with `sluice prepare --train-on "
                           "all --show 3`.");
}

// Whether a complete set has damaged files; says so on stderr.
bool has_damage(const Preparation& preparation, const std::string& directory,
                const std::function<void(const PrepareProgress&)>& progress) {
  if (!is_complete_set(directory)) return false;
  const std::vector<std::string> damaged = preparation.damaged_files(directory, progress);
  if (damaged.empty()) return false;
  const std::string files = damaged.size() == 1 ? "1 file" : fmt::format("{} files", damaged.size());
  show(stderr,
       fmt::format("sluice: {} of the prepared set in {} ({}{}) made anew, since the checksums refuse "
                   "what is there\n",
                   files, printable(directory), damaged.front(), damaged.size() > 1 ? ", ..." : ""));
  return true;
}

struct Prepared {
  PreparedCounts counts;
  SampleNotes notes;
  nlohmann::ordered_json facts;
  std::string summary, samples;
};

// Tells which options have no effect on these files.
void tell_options_without_effect(const TextOptions& text, const std::vector<DataSource>& sources) {
  const auto have_any = [&](bool (*is_of_kind)(const std::string&)) {
    return std::ranges::any_of(sources,
                               [&](const DataSource& s) { return std::ranges::any_of(s.files, is_of_kind); });
  };
  if (text.form != RecordForm::automatic && !have_any(is_record_file))
    show(stderr, "sluice: --format has no effect: none of the files has records\n");
  if (!text.separator.empty() && !have_any(is_text_file))
    show(stderr, "sluice: --separator has no effect: none of the files is a .txt or .md file\n");
}

// None if a signal stopped it.
std::optional<Prepared> prepare(const Options& options, const std::vector<std::string>& files,
                                const TokenizerPlace& place) {
  PrepareRequest request = prepare_request(options, files, place.directory, place.vocabulary);
  request.threads = static_cast<int>(
      options.memory.threads.value_or(std::max<int64_t>(1, std::thread::hardware_concurrency())));
  const auto [memory, taken] = bytes_for_records(options.memory, request.threads);
  request.memory = memory;
  request.memory_taken = taken;
  const Preparation preparation(std::move(request));
  std::optional<ProgressLine> line(std::in_place, stderr);
  uint64_t of_record = 0;
  const auto progress = [&](const PrepareProgress& p) {
    of_record = std::max(of_record, p.record_memory);
    line->show_progress(p);
  };
  const std::string directory = made_directory(cache_directory(options), preparation.name(progress));
  // A set that is complete and undamaged is not locked: the drive may be read-only.
  const bool is_damaged = has_damage(preparation, directory, progress);
  if (is_damaged || !is_complete_set(directory)) {
    const SetLock lock(directory);
    if (is_damaged || !is_complete_set(directory)) {
      stop_on_signals("sluice: stopping; the parts that are done are kept.\n");
      if (!preparation.make(directory, stop_flag(), progress)) return std::nullopt;
      end_on_signals();
    }
  }
  line.reset();
  if (of_record > memory)
    show(stderr,
         fmt::format("sluice: the longest record took up to {} of memory, and --host-mem leaves {} for "
                     "records\n",
                     format_size(of_record), format_size(memory)));
  const PreparedSet set = PreparedSet::open(directory, INT32_MAX);
  const PreparedCounts& counts = set.counts();
  const SampleNotes notes = notes_of(set);
  if (!options.text.separator.empty() && std::ranges::all_of(files, is_text_file) &&
      counts.records == files.size())
    show(stderr, "sluice: --separator divides none of the files: each is one document\n");
  const TextModel& model = preparation.text_model();
  const LearnedEnds ends = options.text.end_token.empty()
                               ? learned_ends(model, counts, notes)
                               : LearnedEnds{{}, unlearned_end(model, counts, notes)};
  return Prepared{counts, notes, facts_of(counts, notes, ends, directory),
                  summary(counts, notes, ends) + "in " + printable(directory) + "\n",
                  options.text.show > 0 ? samples_text(preparation, options.text.show) : ""};
}

}  // namespace

ExitCode run_prepare(Options options, std::FILE* out) {
  const TokenizerPlace place = tokenizer_of(options);
  for (const std::string& sentence : open_folders(options)) show(stderr, "sluice: " + sentence + "\n");
  const std::vector<DataSource> sources = sources_of(options.data.train);
  tell_options_without_effect(options.text, sources);
  uint64_t weights = 0;
  for (const DataSource& source : sources) weights += source.weight;
  auto list = nlohmann::ordered_json::array();
  std::string samples;
  std::vector<Prepared> prepared;
  for (const DataSource& source : sources) {
    const std::optional<Prepared> one = stop_flag() ? std::nullopt : prepare(options, source.files, place);
    if (!one) return ExitCode::stopped;
    nlohmann::ordered_json facts = one->facts;
    std::string head;
    if (source.weight > 0) {
      const double share = static_cast<double>(source.weight) / static_cast<double>(weights);
      facts["data"] = printable(source.path);
      facts["share"] = share;
      head = fmt::format("{}, {:.4g} % of all sequences:\n", printable(source.path), 100 * share);
    }
    if (!options.print.json) show(out, head + one->summary + one->samples);
    list.push_back(std::move(facts));
    samples += one->samples;
    prepared.push_back(*one);
  }
  if (options.print.json) show(out, (are_weighted(sources) ? list : list.front()).dump(2) + "\n" + samples);
  for (size_t i = 0; i < prepared.size(); ++i)
    check_counts(prepared[i].counts, prepared[i].notes,
                 are_weighted(sources) ? printable(sources[i].path) + ": " : "");
  return ExitCode::done;
}

}  // namespace sluice
