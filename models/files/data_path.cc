#include "models/files/data_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Whether a file of this name may hold data. Files that are refused with a hint how to turn them into data
// count, too.
bool may_hold_data(const fs::path& path) {
  static constexpr std::array kExtensions = {".jsonl", ".json", ".ndjson", ".txt",     ".md",   ".bin",
                                             ".gz",    ".zst",  ".xz",     ".parquet", ".arrow"};
  const std::string name = lower(path.filename().string());
  if (name.starts_with('.')) return false;
  // Files that Hugging Face's data sets have beside their data.
  for (const char* about : {"readme", "license", "dataset_info", "state.json"})
    if (name.starts_with(about)) return false;
  const std::string extension = lower(path.extension().string());
  return std::any_of(kExtensions.begin(), kExtensions.end(), [&](const char* e) { return extension == e; });
}

void add_folder(const std::string& folder, DataFiles& to) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // Such as .git and .ipynb_checkpoints.
    if (entry->is_directory(error) && entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      to.left_out.push_back(entry->path().string());
      continue;
    }
    if (entry->is_directory(error) && !entry->is_symlink(error)) continue;
    // A link to a folder is not followed: it may lead back.
    const bool is_data = entry->is_regular_file(error) && may_hold_data(entry->path());
    (is_data ? found : to.left_out).push_back(entry->path().string());
    error.clear();  // the error of a link that leads nowhere
  }
  if (error)
    throw Error(ExitCode::environment,
                fmt::format("Cannot read the folder {}: {}.", printable(folder), error.message()),
                "Make it readable, or name its files.");
  if (found.empty())
    throw Error(ExitCode::usage, fmt::format("{} is a folder without data.", printable(folder)),
                "Name files, or a folder with .jsonl, .json, .txt, .md or .bin files.");
  std::sort(found.begin(), found.end());
  std::sort(to.left_out.begin(), to.left_out.end());
  to.files.insert(to.files.end(), found.begin(), found.end());
}

struct Magic {
  std::string_view bytes;
  const char *name, *remedy;  // {0}: the file; {1}: where to put what comes of it
  bool only_of_text = false;
};
using namespace std::string_view_literals;
constexpr std::array kMagics = {
    Magic{"\x1f\x8b\x08"sv, "a gzip file", "Unpack it: zcat < {0} > {1}"},
    Magic{"\x28\xb5\x2f\xfd"sv, "a Zstandard file", "Unpack it: zstdcat < {0} > {1}"},
    Magic{"\xfd"
          "7zXZ"sv,
          "an xz file", "Unpack it: xzcat < {0} > {1}"},
    Magic{"BZh"sv, "a bzip2 file", "Unpack it: bzcat < {0} > {1}", true},
    Magic{"PK\x03\x04"sv, "a zip archive", "Unpack it: unzip {}"},
    Magic{"PAR1"sv, "a Parquet file",
          "Convert it: python3 -c \"import sys, pandas; pandas.read_parquet(sys.argv[1])"
          ".to_json(sys.argv[2], orient='records', lines=True)\" {} OUT.jsonl"},
    Magic{"ARROW1"sv, "an Arrow file",
          "Convert it: python3 -c \"import sys, pandas; pandas.read_feather(sys.argv[1])"
          ".to_json(sys.argv[2], orient='records', lines=True)\" {} OUT.jsonl"},
    Magic{"\xff\xff\xff\xff"sv, "an Arrow stream, as datasets saves it",
          "Convert it: python3 -c \"import sys, datasets; datasets.Dataset.from_file(sys.argv[1])"
          ".to_json(sys.argv[2])\" {} OUT.jsonl",
          true},
    Magic{"\x93NUMPY"sv, "a NumPy file",
          "Convert it: python3 -c \"import sys, numpy; "
          "numpy.load(sys.argv[1]).astype(numpy.uint16).tofile(sys.argv[2])\" {} OUT.bin"},
    Magic{"version https://git-lfs"sv, "a pointer of Git LFS, not the file that it stands for",
          "Fetch the file: git lfs pull --include {}"},
    Magic{"%PDF-"sv, "a PDF file", "Take its text out: pdftotext {} OUT.txt", true},
    Magic{"<!DOCTYPE html"sv, "a web page", "Download the file itself; {} is the page about it.", true},
    Magic{"\xff\xfe\0\0"sv, "text in UTF-32", "Convert it: iconv -f UTF-32 -t UTF-8 {0} -o {1}", true},
    Magic{"\0\0\xfe\xff"sv, "text in UTF-32", "Convert it: iconv -f UTF-32 -t UTF-8 {0} -o {1}", true},
    Magic{"\xff\xfe"sv, "text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 {0} -o {1}", true},
    Magic{"\xfe\xff"sv, "text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 {0} -o {1}", true},
};

// The name for what a conversion makes: OUT, with the ending that the file has or had before it was packed.
std::string result_of(const fs::path& path) {
  for (const fs::path& name : {path.stem(), path.filename()})
    if (may_hold_data(name) && name.extension() != ".parquet") return "OUT" + name.extension().string();
  return "OUT.jsonl";
}

// The encoding if the text looks like UTF-16 without a byte-order mark: of its first bytes, every second one
// is 0, and no other byte is.
std::optional<std::string> utf16_of(std::string_view begin) {
  if (begin.size() < 4) return std::nullopt;
  for (const size_t zero : {size_t{0}, size_t{1}}) {
    bool is_it = true;
    for (size_t i = 0; i + 1 < begin.size(); i += 2)
      is_it = is_it && begin[i + zero] == '\0' && begin[i + 1 - zero] != '\0';
    if (is_it) return zero == 0 ? "UTF-16BE" : "UTF-16LE";
  }
  return std::nullopt;
}

}  // namespace

DataFiles files_of(const std::vector<std::string>& paths) {
  DataFiles all;
  std::error_code ignored;
  for (const std::string& path : paths)
    if (fs::is_directory(path, ignored))
      add_folder(path, all);
    else
      all.files.push_back(path);
  return all;
}

std::string left_out_of_folders(const DataFiles& files) {
  if (files.left_out.empty()) return "";
  constexpr size_t kNamed = 3;
  std::string text = "Not read, as they do not look like data:";
  for (size_t i = 0; i < std::min(kNamed, files.left_out.size()); ++i)
    text += fmt::format("{} {}", i == 0 ? "" : ",", printable(files.left_out[i]));
  if (files.left_out.size() > kNamed) text += fmt::format(" and {} more", files.left_out.size() - kNamed);
  return text + ".";
}

std::optional<OtherKind> other_kind_of(const InputFile& file, bool is_text) {
  std::array<char, 64> bytes{};
  const uint64_t size = std::min<uint64_t>(bytes.size(), file.bytes());
  file.read(0, bytes.data(), size);
  const std::string_view begin(bytes.data(), size);
  const std::string path = printable(file.path()), result = printable(result_of(file.path()));
  const auto kind_of = [&](const Magic& magic) {
    return OtherKind{magic.name, fmt::format(fmt::runtime(magic.remedy), path, result)};
  };
  for (const Magic& magic : kMagics)
    if ((is_text || !magic.only_of_text) && begin.starts_with(magic.bytes)) return kind_of(magic);
  if (const auto encoding = is_text ? utf16_of(begin) : std::nullopt)
    return OtherKind{"text in " + *encoding,
                     fmt::format("Convert it: iconv -f {} -t UTF-8 {} -o {}", *encoding, path, result)};
  return std::nullopt;
}

}  // namespace sluice
