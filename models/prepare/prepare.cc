#include "models/prepare/prepare.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/base/error.h"
#include "engine/base/parallel.h"
#include "models/files/data_path.h"
#include "models/text/tokenizer/added_tokens.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kVersion = 9;  // to be raised when the same data would make another set
constexpr uint64_t kStretchBytesLeast = 1 << 20;
constexpr uint64_t kStretchesMost = 256;     // about, so that a set has few files
constexpr uint64_t kListStretchesMost = 16;  // each stretch scans its list from the beginning
constexpr uint64_t kPieceBytes = 1 << 20;

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr, "memory for a checksum");
    XXH3_128bits_reset(state_);
  }
  ~Checksum() { XXH3_freeState(state_); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* data, uint64_t bytes) { XXH3_128bits_update(state_, data, bytes); }
  void add(const std::string& text) {  // with its length: "ab", "c" differs from "a", "bc"
    const uint64_t bytes = text.size();
    add(&bytes, sizeof bytes);
    add(text.data(), bytes);
  }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t* state_;
};

void add_file(const InputFile& file, Checksum& sum, const std::function<void(uint64_t)>& read) {
  std::vector<char> piece(kPieceBytes);
  const uint64_t bytes = file.bytes();
  sum.add(&bytes, sizeof bytes);
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t n = std::min(kPieceBytes, bytes - at);
    file.read(at, piece.data(), n);
    sum.add(piece.data(), n);
    at += n;
    read(n);
  }
}

// The set's name depends on what the file held when it was opened, so the set must hold nothing else.
void require_as_opened(const RecordFile& file) {
  if (!file.is_as_opened())
    throw Error(ExitCode::io, printable(file.path()) + " was changed or removed while it was read.",
                "Leave it alone until it is prepared, and start again.");
}

bool ends_in(const std::string& path, const char* extension) {
  std::string own = fs::path(path).extension().string();
  std::transform(own.begin(), own.end(), own.begin(), [](unsigned char c) { return std::tolower(c); });
  return own == extension;
}

}  // namespace

bool is_record_file(const std::string& path) {
  return ends_in(path, ".jsonl") || ends_in(path, ".json") || ends_in(path, ".ndjson") ||
         ends_in(path, ".parquet");
}
bool is_text_file(const std::string& path) { return ends_in(path, ".txt") || ends_in(path, ".md"); }

SampleNotes notes_of(const PreparedSet& set) {
  SampleNotes all;
  for (const std::string& notes : set.notes()) try {
      all += notes_of_json(notes);
    } catch (const std::invalid_argument& error) {
      throw Error(ExitCode::malformed_file,
                  fmt::format("{} is damaged: {}.", printable(set.directory()), error.what()),
                  "Delete the prepared set; it is made anew from the data.");
    }
  return all;
}

std::vector<uint32_t> ends_with(const std::vector<uint32_t>& known,
                                const std::map<uint32_t, uint64_t>& trained, uint64_t texts) {
  uint64_t with_known = 0, others = 0;
  for (const auto& [id, count] : trained)
    (std::find(known.begin(), known.end(), id) == known.end() ? others : with_known) += count;
  std::vector<uint32_t> ends = known;
  if (with_known > texts) return ends;  // more than texts: some conversations end in known ones
  if (with_known + others <= texts && with_known >= others) return ends;  // only texts: at least half do
  for (const auto& [id, count] : trained)
    if (std::find(known.begin(), known.end(), id) == known.end()) ends.push_back(id);
  return ends;
}

namespace {

std::string names_of(const TextModel& model, std::span<const uint32_t> tokens) {
  std::string names;
  for (const uint32_t token : tokens)
    names += (names.empty() ? "" : " and ") +
             printable(model.tokenizer.content_of(token).value_or(std::to_string(token)));
  return names;
}

}  // namespace

LearnedEnds learned_ends(const TextModel& model, const PreparedCounts& counts, const SampleNotes& notes) {
  LearnedEnds learned{ends_with(model.ends, notes.ends, counts.texts), ""};
  if (learned.ids.size() == model.ends.size()) return {};
  const std::span others = std::span(learned.ids).subspan(model.ends.size());
  uint64_t all = notes.endless, with_others = 0;
  for (const auto& [id, count] : notes.ends) all += count;
  for (const uint32_t id : others) with_others += notes.ends.at(id);
  learned.sentence = fmt::format(
      "Of {} answers and texts, {} end with {}, which is none of the model's ends: beside these, it becomes "
      "an "
      "end of a run on these data, in samples, `sluice generate` and exports. --eos-token TOKEN names "
      "another "
      "end.",
      all, with_others, names_of(model, others));
  return learned;
}

std::string unlearned_end(const TextModel& model, const PreparedCounts& counts, const SampleNotes& notes) {
  uint64_t answers = notes.endless, ended = 0;
  std::vector<uint32_t> others;
  for (const auto& [id, count] : notes.ends) {
    answers += count;
    if (std::find(model.ends.begin(), model.ends.end(), id) == model.ends.end())
      others.push_back(id);
    else
      ended += count;
  }
  // All texts are taken to end with the chosen end. So some answer ends with it, too, if more samples do than
  // there are texts.
  if (answers <= counts.texts || ended > counts.texts) return "";
  return fmt::format(
      "No answer of the data ends with {}, the end that --eos-token names: a run on these data does not "
      "learn to stop.{}",
      names_of(model, model.ends),
      others.empty() ? "" : fmt::format(" Answers end with {}.", names_of(model, others)));
}

namespace {

// "system (1), images (3)"
std::string list_of(const SampleNotes::ByName& names) {
  std::vector<std::string> all;
  for (const auto& [name, times] : names) all.push_back(fmt::format("{} ({})", printable(name), times));
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string counted(uint64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

std::string without_blank_ends(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == text.npos ? "" : text.substr(first, last + 1 - first);
}

void add_remarks(const SampleNotes& notes, std::vector<std::string>& remarks) {
  if (!notes.unread.empty()) remarks.push_back("not read: " + list_of(notes.unread));
  if (!notes.unknown_roles.empty())
    remarks.push_back("roles not known, whose messages are no answers: " + list_of(notes.unknown_roles));
  if (notes.unmarked > 0)
    remarks.push_back(counted(notes.unmarked, "answer is", "answers are") +
                      " not trained, or not as a whole, since the {% generation %} marks of the chat "
                      "template are elsewhere");
  if (notes.cut > 0)
    remarks.push_back(counted(notes.cut, "answer lacks a part, which the chat template leaves out",
                              "answers lack a part, which the chat template leaves out"));
  if (notes.empty > 0) remarks.push_back(counted(notes.empty, "answer is empty", "answers are empty"));
  if (notes.masked > 0)
    remarks.push_back(counted(notes.masked, "answer is trained", "answers are trained") +
                      " by --train-on all although the record says that it is not to be");
  const std::string opening = without_blank_ends(notes.opening);
  if (notes.opened > 0)
    remarks.push_back(counted(notes.opened, "answer does not begin with", "answers do not begin with") +
                      fmt::format(" {}, with which the chat template's prompt ends",
                                  opening.empty() ? "the blanks" : printable(opening)));
  if (notes.whole > 0)
    remarks.push_back(counted(notes.whole, "text is", "texts are") +
                      " trained as a whole, since --train-on last is about conversations");
  if (notes.rendered > 0)
    remarks.push_back(counted(notes.rendered,
                              "text was rendered by a chat template before: its control tokens are control "
                              "tokens",
                              "texts were rendered by a chat template before: their control tokens are "
                              "control tokens"));
  if (notes.endless > 0)
    remarks.push_back(counted(notes.endless, "answer or text does not end with a control token",
                              "answers and texts do not end with a control token") +
                      ", so that the model does not learn to stop there" +
                      (notes.no_end.empty() ? std::string() : fmt::format(" ({})", notes.no_end)) +
                      "; --eos-token TOKEN says which token ends them, if one does");
}

}  // namespace

std::vector<std::string> remarks_on(const PreparedCounts& counts, const SampleNotes& notes) {
  std::vector<std::string> remarks;
  add_remarks(notes, remarks);
  const auto add = [&](uint64_t count, const char* one, const char* several) {
    if (count > 0) remarks.push_back(fmt::format("{} {}", count, count == 1 ? one : several));
  };
  add(counts.divided,
      "conversation is a sample for each answer, since the chat template renders earlier turns otherwise",
      "conversations are a sample for each answer, since the chat template renders earlier turns otherwise");
  add(counts.untrained, "sample without trained tokens is left out",
      "samples without trained tokens are left out");
  if (counts.bad > 0)
    remarks.push_back(counted(counts.bad, "malformed record is left out", "malformed records are left out") +
                      (notes.refusal.empty() ? "" : fmt::format(" (the first: {})", notes.refusal)));
  add(counts.unknown_characters,
      "character is unknown to the installed Oniguruma, and transformers may cut the text around it "
      "otherwise",
      "characters are unknown to the installed Oniguruma, and transformers may cut the text around them "
      "otherwise");
  add(counts.spelled_controls,
      "control token that text of users spells stays text (but with --control-tokens anywhere)",
      "control tokens that text of users spells stay text (but with --control-tokens anywhere)");
  return remarks;
}

Preparation::Preparation(PrepareRequest request)
    : request_(std::move(request)), model_(open_text_model(request_.tokenizer, request_.chat_template)) {
  if (!request_.end_token.empty()) set_end_token(model_, request_.end_token);
  for (const std::string& path : request_.files) {
    if (const auto other = other_kind_of(InputFile(path), true))
      throw Error(ExitCode::usage, fmt::format("{} is {}, which is not read.", printable(path), other->name),
                  other->remedy);
    if (!is_record_file(path) && !is_text_file(path))
      throw Error(
          ExitCode::usage,
          printable(path) + " is neither a .jsonl, a .json, a .txt nor a .md file, which hold chats or text.",
          "Convert it to JSON lines, as {\"messages\": [...]} or {\"text\": ...}, or to a .txt file.");
    if (is_record_file(path) && is_divided_object(path))
      throw Error(
          ExitCode::malformed_file,
          printable(path) + " begins with an object of several lines, and a record has one line.",
          fmt::format("Convert the file to one record a line: jq -c . {} > OUT.jsonl", printable(path)));
    if (is_text_file(path) && begins_as_json(path))
      throw Error(
          ExitCode::usage, printable(path) + " holds JSON, which would be trained as it is spelled.",
          fmt::format(
              "Rename it, to {0}.jsonl or {0}.json; or write it as {{\"text\": ...}} where just that is "
              "wanted.",
              printable(fs::path(path).replace_extension().string())));
    const Division division = is_record_file(path)         ? division_of_json(path)
                              : request_.separator.empty() ? Division::stretches
                                                           : Division::separator;
    files_.emplace_back(path, division, request_.separator,
                        RecordMemory(request_.memory).limit(request_.memory_taken));
    if (files_.back().bytes() == 0)
      throw Error(ExitCode::malformed_file, printable(path) + " is empty.", "Give a file with data.");
  }
}

bool Preparation::reads_json(size_t file) const { return is_record_file(files_[file].path()); }

uint64_t Preparation::bytes() const {
  uint64_t all = 0;
  for (const RecordFile& file : files_) all += file.bytes();
  return all;
}

std::string Preparation::facts() const {
  nlohmann::ordered_json facts;
  constexpr size_t kNamed = 1000;
  for (size_t f = 0; f < std::min(files_.size(), kNamed); ++f)
    facts["files"].push_back(printable(fs::path(files_[f].path()).filename()));
  if (files_.size() > kNamed) facts["other_files"] = files_.size() - kNamed;
  facts["tokenizer"] = printable(request_.tokenizer);
  facts["form"] = static_cast<int>(request_.form);
  facts["names"] =
      std::vector<std::pair<std::string, std::string>>(request_.names.begin(), request_.names.end());
  facts["separator"] = printable(request_.separator);
  facts["train_on"] = static_cast<int>(request_.choices.train_on);
  facts["control_tokens"] = static_cast<int>(request_.choices.control_tokens);
  facts["template_values"] = request_.choices.template_values;
  facts["skips_bad"] = request_.skips_bad;
  return facts.dump();
}

std::string Preparation::name(const std::function<void(const PrepareProgress&)>& progress) const {
  PrepareProgress now{true, 0, bytes()};
  Checksum sum;
  sum.add(&kVersion, sizeof kVersion);
  nlohmann::ordered_json choices = nlohmann::ordered_json::parse(facts());
  for (const char* place : {"files", "other_files", "tokenizer"}) choices.erase(place);
  sum.add(choices.dump());
  sum.add(model_.chat_source);
  sum.add(model_.tools_chat_source);
  for (const auto& [control, content] : model_.controls) sum.add(control + "\n" + content);
  sum.add(model_.end ? std::to_string(*model_.end) : "");
  sum.add(fmt::format("{}", fmt::join(model_.ends, " ")));
  // Other files than tokenizer.json and tokenizer.model add tokens and change flags.
  for (const AddedToken& token : model_.tokenizer.added())
    sum.add(fmt::format("{} {}{}{}{}{} {}", token.id, token.single_word, token.lstrip, token.rstrip,
                        token.normalized, token.special, token.content));
  // With a tokenizer.model, tokenizer_config.json says which tokens the prefix and the suffix are.
  for (const std::vector<uint32_t>* added : {&model_.tokenizer.prefix(), &model_.tokenizer.suffix()})
    sum.add(fmt::format("{}", fmt::join(*added, " ")));
  for (const char* file : {"tokenizer.json", "tokenizer.model"})
    if (const fs::path path = fs::path(request_.tokenizer) / file; fs::exists(path)) {
      add_file(InputFile(path.string()), sum, [](uint64_t) {});
      break;
    }
  for (size_t f = 0; f < files_.size(); ++f) {
    sum.add(reads_json(f) ? "records" : "text");
    add_file(InputFile(files_[f].path()), sum, [&](uint64_t n) {
      now.bytes += n;
      progress(now);
    });
  }
  return sum.text();
}

std::vector<Preparation::Stretch> Preparation::stretches() const {
  std::vector<Stretch> all;
  for (size_t f = 0; f < files_.size(); ++f) {
    const bool is_list = files_[f].division() == Division::elements;
    const uint64_t length = std::max(
        kStretchBytesLeast, is_list ? files_[f].bytes() / kListStretchesMost : bytes() / kStretchesMost);
    for (uint64_t begin = 0; begin < files_[f].bytes(); begin += length)
      all.push_back({f, begin, std::min(begin + length, files_[f].bytes())});
  }
  return all;
}

PreparedCounts Preparation::make_samples(const Stretch& stretch, SampleMaker& maker, RecordMemory& memory,
                                         const std::function<bool(const Sample&, bool goes_on)>& take,
                                         const std::function<bool(uint64_t bytes)>& goes_on) const {
  PreparedCounts counts;
  const RecordFile& file = files_[stretch.file];
  const bool is_json = reads_json(stretch.file);
  uint64_t seen = stretch.begin;
  bool more = true;
  file.read(stretch.begin, stretch.end, [&](const std::string& text, uint64_t begin) {
    if (!goes_on(begin - seen)) return false;
    seen = begin;
    // An empty line, or nothing between two separators.
    if (text.find_first_not_of(" \t\r\n") == text.npos) return true;
    ++counts.records;
    const RecordMemory::Share share = memory.take(text.size());
    Samples samples;
    try {
      const bool has_mark = !is_json && begin == 0 && text.starts_with(kByteOrderMark);
      samples = maker.make(
          is_json ? parse_record(text, request_.form, request_.names)
                  : Record(PlainText{"", has_mark ? text.substr(kByteOrderMark.size()) : text, true}));
    } catch (const std::invalid_argument& error) {
      if (!request_.skips_bad)
        throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", file.place(begin), error.what()),
                    remedy_of(error, "Correct it, or leave out what is malformed with --bad-records skip.",
                              file.path(), file.division() == Division::elements));
      ++counts.bad;
      maker.note_refusal(error.what());
      return true;
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", file.place(begin), error.what()), error.remedy());
    }
    counts.divided += samples.size() > 1;
    bool goes_on_with = false;
    for (const Sample& sample : samples) {
      const auto outside = std::find_if(sample.ids.begin(), sample.ids.end(), [&](uint32_t id) {
        return request_.vocabulary > 0 && id >= static_cast<uint64_t>(request_.vocabulary);
      });
      if (outside != sample.ids.end())
        throw Error(ExitCode::malformed_file,
                    fmt::format("{}: the tokenizer gives token {}, and the model's embedding has {} rows.",
                                file.place(begin), *outside, request_.vocabulary),
                    "Use the tokenizer of this model.");
      if (sample.trained_tokens() == 0) {
        ++counts.untrained;
        continue;
      }
      counts.texts += sample.is_text;
      counts.unknown_characters += sample.unknown_characters;
      counts.spelled_controls += sample.spelled_controls;
      if (more) more = take(sample, goes_on_with);
      goes_on_with = true;
    }
    return more;
  });
  goes_on(stretch.end - seen);
  return counts;
}

bool Preparation::make(const std::string& directory, const std::atomic<bool>& stop,
                       const std::function<void(const PrepareProgress&)>& progress) const {
  const std::vector<Stretch> all = stretches();
  PrepareProgress now{false, 0, bytes()};
  RecordMemory memory(request_.memory);
  std::mutex mutex;  // of `now`, `fault` and `progress`
  std::exception_ptr fault;
  std::atomic<bool> ends{false};
  const auto goes_on = [&](uint64_t bytes) {
    const std::lock_guard lock(mutex);
    now.bytes += bytes;
    now.record_memory = memory.most();
    progress(now);
    return !ends && !stop;
  };
  Workers workers(request_.threads);
  std::vector<std::unique_ptr<SampleMaker>> makers(static_cast<size_t>(workers.threads()));
  workers.parallel_for(static_cast<int64_t>(all.size()), [&](int64_t index, int thread) {
    if (ends || stop) return;
    try {
      const Stretch& stretch = all[static_cast<size_t>(index)];
      const std::string path = (fs::path(directory) / part_name(static_cast<uint64_t>(index))).string();
      if (part_counts(path)) {
        goes_on(stretch.end - stretch.begin);
        return;
      }
      auto& maker = makers[static_cast<size_t>(thread)];
      if (!maker) maker = std::make_unique<SampleMaker>(model_, request_.choices);
      PartWriter part(path);
      const auto take = [&](const Sample& sample, bool goes_on_with) {
        part.add(sample.ids, sample.trained, sample.is_text, goes_on_with);
        return true;
      };
      const PreparedCounts counts = make_samples(stretch, *maker, memory, take, goes_on);
      require_as_opened(files_[stretch.file]);
      const SampleNotes notes = maker->take_notes();
      if (!ends && !stop) part.commit(counts, json_of(notes));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!fault) fault = std::current_exception();
      ends = true;
    }
  });
  if (fault) std::rethrow_exception(fault);
  if (stop) return false;
  complete_set(directory, all.size(), facts());
  return true;
}

std::vector<std::string> Preparation::damaged_files(
    const std::string& directory, const std::function<void(const PrepareProgress&)>& progress) const {
  const std::vector<Stretch> all = stretches();
  PrepareProgress now{true, 0, bytes()};
  std::mutex mutex;  // of `now`, `damaged` and `progress`
  std::vector<std::string> damaged;
  if (parts_of_set(directory) != all.size()) damaged.push_back("set.json");
  Workers workers(request_.threads);
  workers.parallel_for(static_cast<int64_t>(all.size()), [&](int64_t index, int) {
    const std::string name = part_name(static_cast<uint64_t>(index));
    bool is_right = false;
    try {
      is_right = part_counts((fs::path(directory) / name).string()).has_value();
    } catch (const Error&) {  // it cannot be read
    }
    const Stretch& stretch = all[static_cast<size_t>(index)];
    const std::lock_guard lock(mutex);
    if (!is_right) damaged.push_back(name);
    now.bytes += stretch.end - stretch.begin;
    progress(now);
  });
  std::sort(damaged.begin(), damaged.end());
  return damaged;
}

std::vector<Sample> Preparation::first_samples(size_t count) const {
  std::vector<Sample> samples;
  SampleMaker maker(model_, request_.choices);
  RecordMemory memory(request_.memory);
  for (const Stretch& stretch : stretches()) {
    if (samples.size() >= count) break;
    make_samples(
        stretch, maker, memory,
        [&](const Sample& sample, bool) {
          samples.push_back(sample);
          return samples.size() < count;
        },
        [](uint64_t) { return true; });
  }
  return samples;
}

}  // namespace sluice
