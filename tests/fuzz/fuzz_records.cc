#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/text/records/record.h"
#include "models/text/records/record_file.h"
#include "models/text/samples/sample_maker.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

namespace {

constexpr const char* kModel = "tests/fixtures/fine_tuning/model";
// Earlier answers are left out, so that each answer is a sample of its own.
constexpr const char* kForgetfulTemplate =
    "{% for m in messages %}<{{ m.role }}>{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% endif "
    "%}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

TextModel forgetful_model() {
  TextModel model{.tokenizer = Tokenizer::open(kModel)};
  model.chat.emplace(kForgetfulTemplate);
  return model;
}

struct Makers {
  const TextModel marked = open_text_model(kModel, "");  // its template has {% generation %}
  const TextModel forgetful = forgetful_model();
  std::vector<SampleMaker> all;

  Makers() {
    all.emplace_back(marked, SampleChoices{.train_on = TrainOn::last});
    all.emplace_back(forgetful, SampleChoices{.train_on = TrainOn::answers});
    all.emplace_back(forgetful, SampleChoices{.train_on = TrainOn::all});
  }
};

// False where the record is refused.
template <typename Read>
bool is_record(const Read& read) {
  try {
    return is_taken(read);
  } catch (const std::invalid_argument& error) {
    const std::string what = error.what();
    demand(!what.empty() && printable(what) == what, "a refusal is printable: " + printable(what));
    return false;
  }
}

void make_samples(const Record& record) {
  static Makers makers;
  for (SampleMaker& maker : makers.all)
    is_record([&] {
      for (const Sample& sample : maker.make(record)) {
        demand(sample.ids.size() == sample.trained.size(), "each token has its mark");
        for (const uint32_t id : sample.ids)
          demand(id < makers.marked.tokenizer.id_end(), "a sample's ids have tokens");
      }
    });
}

bool read_line(const std::string& line) {
  static const NameMap renamed = {{"messages", "m"}, {"role", "r"},     {"content", "c"},    {"prompt", "p"},
                                  {"text", "t"},     {"user", "human"}, {"assistant", "bot"}};
  bool result = false;
  for (const RecordForm form : {RecordForm::automatic, RecordForm::messages, RecordForm::sharegpt,
                                RecordForm::alpaca, RecordForm::completion, RecordForm::text})
    for (const NameMap& names : {NameMap{}, renamed}) {
      const bool taken = is_record([&] {
        const Record record = parse_record(line, form, names);
        if (const auto* chat = std::get_if<Conversation>(&record)) {
          demand(!chat->messages->empty(), "a conversation has messages");
          demand(chat->messages->size() == chat->trained_messages.size(), "each message has its mark");
        }
        if (form == RecordForm::automatic) make_samples(record);
      });
      result = result || (taken && form == RecordForm::automatic);
    }
  return result;
}

std::vector<std::string> records_in(const RecordFile& file, uint64_t begin, uint64_t end) {
  std::vector<std::string> records;
  file.read(begin, end, [&](const std::string& text, uint64_t at) {
    demand(at >= begin && at < end, "a record begins in its stretch");
    records.push_back(text);
    return true;
  });
  return records;
}

// Returns the records of a file, which must be the same however the file is divided into stretches.
std::vector<std::string> checked_records(const RecordFile& file) {
  const std::vector<std::string> whole = records_in(file, 0, file.bytes());
  for (const uint64_t border : {file.bytes() / 3, file.bytes() / 2}) {
    std::vector<std::string> parts = records_in(file, 0, border);
    std::ranges::move(records_in(file, border, file.bytes()), std::back_inserter(parts));
    demand(parts == whole, "stretches have the records of the whole");
  }
  return whole;
}

}  // namespace

bool fuzz_records(Input input) {
  const MemoryFile file(text_of(input));
  bool result = false;
  is_taken([&] {
    checked_records(RecordFile(file.path(), Division::stretches));
    checked_records(RecordFile(file.path(), Division::separator, "\n\n"));
    if (division_of_json(file.path()) == Division::elements)
      is_taken([&] { checked_records(RecordFile(file.path(), Division::elements)); });
    const std::vector<std::string> lines = checked_records(RecordFile(file.path(), Division::lines));
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool taken = read_line(lines[i]);
      if (i == 0) result = taken;
    }
  });
  return result;
}

}  // namespace sluice::fuzzing
