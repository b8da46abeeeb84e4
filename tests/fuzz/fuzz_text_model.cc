#include <filesystem>
#include <fstream>

#include "models/text/samples/text_model.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer =
    R"({"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": {"type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3}, "merges": ["a b"]}})";

// A model directory for as long as the process lives.
class Directory {
 public:
  Directory() {
    std::string path = (fs::temp_directory_path() / "sluice-fuzz-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("a temporary directory cannot be made");
    path_ = path;
    write("tokenizer.json", kTokenizer);
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  // An empty text removes the file.
  void write(const char* name, std::string_view text) const {
    fs::remove(path_ + "/" + name);
    if (!text.empty())
      std::ofstream(path_ + "/" + name, std::ios::binary)
          .write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  std::string path_;
};

}  // namespace

bool fuzz_text_model(Input input) {
  static const Directory directory;
  const Parts last = divided(text_of(input));
  const Parts first = last.is_divided ? divided(last.first) : last;
  directory.write("tokenizer_config.json", first.first);
  directory.write("special_tokens_map.json", first.second);
  directory.write("generation_config.json", last.second);
  return is_taken([&] {
    const TextModel model = open_text_model(directory.path(), "");
    demand(!model.end || model.tokenizer.content_of(*model.end).has_value(), "the end token has an id");
    demand(model.chat.has_value() == !model.chat_source.empty(), "a template has its source");
  });
}

}  // namespace sluice::fuzzing
