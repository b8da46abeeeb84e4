// Text and chats as a prepared set, by several threads.
//
// The data are divided into stretches of bytes, each of which becomes a part of the set (prepared_set.h).
// Parts that are there already are kept, so a preparation that was killed goes on where it was. A set's name
// is a checksum of all that it depends on: the data, the tokenizer, the template, the choices. Memory is
// bounded by PrepareRequest::memory for records, and the marks of one part for each thread. Caller: the verb
// `prepare`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/data/prepared_set.h"
#include "models/prepare/record_memory.h"
#include "models/text/records/record.h"
#include "models/text/records/record_file.h"
#include "models/text/samples/sample_maker.h"

namespace sluice {

struct PrepareRequest {
  std::vector<std::string> files;  // .jsonl, or text
  std::string tokenizer;           // directory
  std::string chat_template;       // file; empty: the tokenizer's
  std::string end_token;           // in place of the tokenizer's eos_token; empty: that stays
  RecordForm form = RecordForm::automatic;
  NameMap names;
  std::string separator;  // between documents of a text; empty: none
  SampleChoices choices;
  bool skips_bad = false;  // malformed records are counted and left out
  int64_t vocabulary = 0;  // rows of the model's embedding; 0: not known
  int threads = 1;
  uint64_t memory = UINT64_MAX;  // for records that are being prepared
  uint64_t memory_taken = 0;     // bytes of --host-mem that all else takes
};

// What is being done; `bytes` of `all` bytes are finished.
struct PrepareProgress {
  bool reads = false;  // true: checksums are taken; false: samples are made
  uint64_t bytes = 0, all = 0;
  uint64_t record_memory = 0;  // the most that a record has taken: RecordMemory::most()
};

class Preparation {
 public:
  // Opens everything. Throws Error(usage, malformed_file).
  explicit Preparation(PrepareRequest request);

  const TextModel& text_model() const { return model_; }

  // The set's name, 32 hexadecimal digits. Reads all data. `progress` is called now and then.
  std::string name(const std::function<void(const PrepareProgress&)>& progress) const;

  // Makes the set in `directory`, which exists; false where `stop` was set first. `progress` is called by one
  // thread at a time. Throws Error(malformed_file) for records that are refused, Error(io), also where a file
  // was changed since it was opened.
  bool make(const std::string& directory, const std::atomic<bool>& stop,
            const std::function<void(const PrepareProgress&)>& progress) const;

  // Names of the files of a complete set in `directory` that are missing or do not match their checksums.
  // Reads the whole set, by several threads. make() makes such files anew.
  std::vector<std::string> damaged_files(const std::string& directory,
                                         const std::function<void(const PrepareProgress&)>& progress) const;

  // The first `count` samples, made anew.
  std::vector<Sample> first_samples(size_t count) const;

 private:
  struct Stretch {
    size_t file;
    uint64_t begin, end;
  };
  bool reads_json(size_t file) const;
  // Makes the samples of a stretch, in order, until `take` returns false. goes_on of `take`: the sample and
  // the sample before it are of the same record.
  PreparedCounts make_samples(const Stretch& stretch, SampleMaker& maker, RecordMemory& memory,
                              const std::function<bool(const Sample&, bool goes_on)>& take,
                              const std::function<bool(uint64_t bytes)>& goes_on) const;
  std::vector<Stretch> stretches() const;
  uint64_t bytes() const;
  std::string facts() const;  // JSON: what the set is made of

  PrepareRequest request_;
  std::vector<RecordFile> files_;
  TextModel model_;
};

// The notes of all parts of a set together. Throws Error(malformed_file) where they are damaged.
SampleNotes notes_of(const PreparedSet& set);

// The ends of answers that data teach: the ends that the model knows and, in two cases, the other control
// tokens behind trained answers. In the first case, no conversation of the data ends in a known end. In the
// second, all data are texts, and more of them end in other tokens than in known ends. `trained`: how many
// answers and texts end in each token; `texts`: how many of these are texts.
std::vector<uint32_t> ends_with(const std::vector<uint32_t>& known,
                                const std::map<uint32_t, uint64_t>& trained, uint64_t texts);

struct LearnedEnds {
  std::vector<uint32_t> ids;  // all ends; empty: only the ends that the model knows
  std::string sentence;       // that names them
};
LearnedEnds learned_ends(const TextModel& model, const PreparedCounts& counts, const SampleNotes& notes);
// For a model whose only end was chosen (set_end_token). Returns a sentence if no trained answer ends with
// that end, so that the model would not learn to stop; else an empty one.
std::string unlearned_end(const TextModel& model, const PreparedCounts& counts, const SampleNotes& notes);

// What to know about prepared data beyond their numbers: sentences without a full stop; often none.
std::vector<std::string> remarks_on(const PreparedCounts& counts, const SampleNotes& notes);

// Whether a file has records, which are prepared with a tokenizer (.jsonl, .json, .ndjson, .parquet); whether
// it is text, which is prepared where there is a tokenizer (.txt, .md).
bool is_record_file(const std::string& path);
bool is_text_file(const std::string& path);

}  // namespace sluice
