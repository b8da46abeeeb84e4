// One name for one thing: the words that docs/glossary.md forbids stand neither in documents, nor in comments
// of headers, nor in texts of --help. Reads files from the repository root, and names file, line and the term
// to use instead.
//
// Code is exempt in documents and headers: what stands between backticks, fenced blocks of documents, and
// everything in a header but its comments. As in structure_test.cc, the check also runs on small wrong texts
// made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/options/options.h"
#include "tests/support/sources.h"
#include "tools/command/help.h"
#include "tools/command/verbs.h"

namespace sluice {
namespace {

constexpr const char* kGlossary = "docs/glossary.md";

// ---- The glossary: rows of four cells, the last with words that are not used ----

struct Term {
  std::string name, meaning;
  std::vector<std::string> forbidden;
};

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" *");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" *") + 1 - begin));
}

// The parts between separators, without blanks around them.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(trimmed(std::string_view(text).substr(begin, end - begin)));
  }
  return parts;
}

// The cells of a table's row; empty if the line is no row.
std::vector<std::string> cells_of(const std::string& line) {
  if (line.size() < 2 || line.front() != '|' || line.back() != '|') return {};
  return split(line.substr(1, line.size() - 2), '|');
}

std::vector<Term> glossary(const Lines& lines) {
  std::vector<Term> terms;
  for (const std::string& line : lines) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != 4 || cells[0] == "term" || cells[0].starts_with("---")) continue;
    Term term{cells[0], cells[1], {}};
    if (!cells[3].empty()) term.forbidden = split(cells[3], ',');
    for (std::string& phrase : term.forbidden)
      std::transform(phrase.begin(), phrase.end(), phrase.begin(), lower);
    terms.push_back(std::move(term));
  }
  return terms;
}

const std::vector<Term>& terms() {
  static const std::vector<Term> all = glossary(lines_of_file(kGlossary));
  return all;
}

// ---- Prose: a text without its code; its lines keep their numbers ----

// Removes everything between backticks, also where the two stand on different lines of a paragraph.
Lines without_code(Lines lines) {
  bool code = false;
  for (std::string& line : lines) {
    if (trimmed(line).empty()) code = false;
    std::string kept;
    for (const char c : line) {
      if (c == '`') code = !code;
      kept += code || c == '`' ? '`' : c;  // a mark, so that no phrase spans it
    }
    line = kept;
  }
  return lines;
}

Lines prose_of_document(Lines lines) {
  bool fenced = false;
  for (std::string& line : lines) {
    const bool fence = trimmed(line).starts_with("```");
    if (fence || fenced) line.clear();
    fenced ^= fence;
  }
  return without_code(std::move(lines));
}

// The glossary without its column of forbidden words.
Lines prose_of_glossary(Lines lines) {
  for (std::string& line : lines)
    if (cells_of(line).size() == 4) line.resize(line.rfind('|', line.size() - 2));
  return prose_of_document(std::move(lines));
}

// The line's comment without the slashes; empty if there is none.
std::string comment_of(const std::string& line) {
  char quote = 0;
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0 && c == '\\') {
      ++i;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"') {
      quote = c;
    } else if (c == '\'' && line.compare(i, 3, "'\"'") == 0) {
      i += 2;
    } else if (c == '/' && line[i + 1] == '/') {
      return line.substr(i + 2);
    }
  }
  return "";
}

Lines prose_of_header(Lines lines) {
  for (std::string& line : lines) line = comment_of(line);
  return without_code(std::move(lines));
}

// ---- Words that are not used ----

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether `phrase`, or its plural, stands at `at` as whole words.
bool stands_at(const std::string& text, size_t at, const std::string& phrase) {
  if (at > 0 && is_letter(text[at - 1])) return false;
  size_t end = at + phrase.size();
  if (end < text.size() && text[end] == 's') ++end;
  return end >= text.size() || !is_letter(text[end]);
}

// A text as one line in lower case. Blanks and ends of lines become one blank.
struct Flat {
  std::string text;
  std::vector<size_t> line;  // by character, from 1
};

Flat flat(const Lines& lines) {
  Flat out;
  const auto add = [&](char c, size_t line) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (blank && out.text.ends_with(' ')) return;
    out.text += blank ? ' ' : lower(c);
    out.line.push_back(line);
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    // An empty line ends a sentence, so that no phrase goes on after it.
    for (const char c : trimmed(lines[i]).empty() ? std::string("|") : lines[i]) add(c, i + 1);
    add(' ', i + 1);
  }
  return out;
}

Offences forbidden_words(const std::string& path, const Lines& prose, const std::vector<Term>& all) {
  const Flat words = flat(prose);
  Offences out;
  for (const Term& term : all)
    for (const std::string& phrase : term.forbidden)
      for (size_t at = words.text.find(phrase); at != std::string::npos; at = words.text.find(phrase, at + 1))
        if (stands_at(words.text, at, phrase))
          out.push_back(path + ":" + std::to_string(words.line[at]) + ": \"" + phrase +
                        "\", the glossary has " + term.name);
  return out;
}

// Sorted by path.
std::vector<std::string> files_below(const std::string& folder, const std::string& extension) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == extension)
      paths.push_back(entry.path().generic_string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Words, TheGlossaryIsWellFormed) {
  EXPECT_GT(terms().size(), 50u) << "run the tests in the repository root";
  std::set<std::string> names, forbidden;
  for (const Term& term : terms()) {
    EXPECT_TRUE(names.insert(term.name).second) << term.name << " stands there twice";
    EXPECT_TRUE(term.meaning.ends_with(".")) << term.name << ": " << term.meaning;
    for (const std::string& phrase : term.forbidden) {
      EXPECT_FALSE(phrase.empty()) << term.name << " forbids an empty word";
      EXPECT_EQ(phrase.find('`'), std::string::npos) << term.name << " forbids code: " << phrase;
      EXPECT_TRUE(forbidden.insert(phrase).second) << phrase << " is forbidden twice";
    }
  }
  for (const std::string& name : names) EXPECT_FALSE(forbidden.contains(name)) << name << " is forbidden";
}

TEST(Words, DocumentsKeepToTheGlossary) {  // also those of rooms
  std::vector<std::string> paths = files_below("docs", ".md");
  paths.insert(paths.end(), {"README.md", "CONTRIBUTING.md"});
  for (const char* folder : kFolders)
    for (const std::string& path : files_below(folder, ".md")) paths.push_back(path);
  for (const std::string& path : paths) {
    const Lines lines = lines_of_file(path);
    ASSERT_FALSE(lines.empty()) << path;
    const Lines prose = path == kGlossary ? prose_of_glossary(lines) : prose_of_document(lines);
    EXPECT_EQ(report(forbidden_words(path, prose, terms())), "");
  }
}

TEST(Words, HeadersKeepToTheGlossary) {
  for (const char* folder : kFolders)
    for (const std::string& path : files_below(folder, ".h"))
      EXPECT_EQ(report(forbidden_words(path, prose_of_header(lines_of_file(path)), terms())), "");
}

TEST(Words, HelpKeepsToTheGlossary) {
  const auto offences = [](const std::string& name, const std::string& help) {
    std::istringstream text(help);
    Lines lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return report(forbidden_words(name, lines, terms()));
  };
  EXPECT_EQ(offences("sluice --help", program_help()), "");
  ASSERT_FALSE(verb_table().empty());
  for (const VerbRow& row : verb_table())
    for (const HelpExtent extent : {HelpExtent::first, HelpExtent::all})
      EXPECT_EQ(offences(verb_name(row.verb), verb_help(row.verb, extent)), "");
}

// ---- Options that messages name ----

// Options of other programs that messages name, and options of this command that are in no table.
constexpr const char* kOfOtherPrograms[] = {
    "bind-to hostfile",                                   // mpirun
    "mpi",                                                // srun
    "local-dir",                                          // hf download
    "include",                                            // git lfs
    "cpunodebind membind",                                // numactl
    "cpus memory memory-swap security-opt ulimit",        // docker
    "pid memlock",                                        // prlimit
    "sort max-depth",                                     // ps, du
    "query-compute-apps query-gpu format",                // nvidia-smi
    "arguments command condition description exclusive "  // fish
    "force-files long-option require-parameter",
    "help help-all man version",  // sluice
};

bool is_of_another_program(const std::string& name) {
  for (const char* names : kOfOtherPrograms) {
    std::istringstream list(names);
    for (std::string known; list >> known;)
      if (known == name) return true;
  }
  return false;
}

// Returns the names after two dashes. A name that goes on with a value ends in a dash, such as "router-".
std::vector<std::string> options_in(const std::string& text) {
  const auto is_part = [](char c) { return c == '-' || is_letter(c); };
  std::vector<std::string> names;
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    if (at > 0 && is_part(text[at - 1])) continue;
    size_t end = at + 2;
    while (end < text.size() && is_part(text[end])) ++end;
    if (end > at + 2 && std::islower(static_cast<unsigned char>(text[at + 2])))
      names.push_back(text.substr(at + 2, end - at - 2));
  }
  return names;
}

bool is_known_option(const std::string& name) {
  if (is_of_another_program(name) || find_option(name) != nullptr) return true;
  if (!name.ends_with('-')) return false;
  for (const OptionRow& row : option_table())
    if (std::string(row.name).starts_with(name)) return true;
  return false;
}

TEST(Words, MessagesNameOptionsThatExist) {
  for (const Source& source : tree()) {
    // Benchmarks are programs of their own.
    if (source.path.starts_with("tests/") || source.path.starts_with("tools/benchmarks/")) continue;
    for (size_t i = 0; i < source.lines.size(); ++i)
      for (const std::string& literal : cut(source.lines[i]).literals)
        for (const std::string& name : options_in(literal))
          EXPECT_TRUE(is_known_option(name)) << source.path << ":" << i + 1 << ": --" << name;
  }
  EXPECT_EQ(options_in("Use --seq 4, or --long-samples=cut (--lr). a--b --- -- --Long --router-{}loss"),
            (std::vector<std::string>{"seq", "long-samples", "lr", "router-"}));
  EXPECT_FALSE(is_known_option("long"));
  EXPECT_FALSE(is_known_option("long-sample"));
}

// ---- Pages that comments and messages name ----

Offences missing_pages(const std::vector<Source>& sources) {
  static const std::regex page("docs/[a-z0-9_/]+\\.md");
  Offences out;
  for (const Source& s : sources)
    for (size_t i = 0; i < s.lines.size(); ++i)
      for (std::sregex_iterator m(s.lines[i].begin(), s.lines[i].end(), page), end; m != end; ++m)
        if (!fs::exists(m->str())) add(out, s, i, "there is no " + m->str());
  return out;
}

TEST(Words, PagesThatSourcesNameExist) {
  EXPECT_EQ(report(missing_pages(tree())), "");
  EXPECT_EQ(missing_pages({{"a.h",
                            {"// See docs/glossary.md.",
                             "// See docs/no"
                             "where.md."}}}),
            Offences{"a.h:2: there is no docs/no"
                     "where.md: // See docs/no"
                     "where.md."});
}

TEST(Words, ForbiddenWordsAreFound) {
  const std::vector<Term> all = glossary({"| term | what it is | in files | not |", "|---|---|---|---|",
                                          "| micro-batch | Sequences. | `slice` | Slice, mini batch |"});
  ASSERT_EQ(all.size(), 1u);
  const auto found = [&](const Lines& prose) { return forbidden_words("x.md", prose, all).size(); };
  EXPECT_EQ(forbidden_words("x.md", {"", "A Slice."}, all),
            Offences{"x.md:2: \"slice\", the glossary has micro-batch"});
  EXPECT_EQ(found({"four slices, one slice-wise"}), 2u);
  EXPECT_EQ(found({"sliced, kSlice, slice_major"}), 0u);
  EXPECT_EQ(found({"of a mini", "batch"}), 1u);
  EXPECT_EQ(found({"of a mini", "", "batch"}), 0u);

  EXPECT_EQ(found(prose_of_document({"a `slice` of", "```", "a slice", "```", "- `one", "  slice`"})), 0u);
  EXPECT_EQ(found(prose_of_document({"```", "```", "a slice"})), 1u);
  EXPECT_EQ(found(prose_of_document({"an odd ` mark", "", "a slice"})), 1u);
  EXPECT_EQ(found(prose_of_header({"int slice;  // of a `slice`", "const char* s = \"// slice\";"})), 0u);
  EXPECT_EQ(
      found(prose_of_header({"int x;  // of a slice", "// mini", "// batch", "char c = '\"'; // slice"})),
      3u);
  EXPECT_EQ(found(prose_of_glossary({"| micro-batch | Sequences. | | slice |"})), 0u);
  EXPECT_EQ(found(prose_of_glossary({"| batch | Some slices. | | |"})), 1u);
}

}  // namespace
}  // namespace sluice
