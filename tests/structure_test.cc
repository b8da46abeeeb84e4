// The shape of the tree: who may include whom, what planner files may not name, where libraries may appear,
// what every header and test must have. Reads the sources from the repository root and names file, line and
// text of each offence.
//
// Every check is a function from sources to offences, so that it is also run on small wrong sources made
// here: a check that finds nothing in the tree has shown that it can find something.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gpu/machine.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolders[] = {"engine", "models", "offload", "cpu_optim", "gpu", "tools", "tests"};
constexpr size_t kLinesMax = 550;  // about 500; a file that is longer has two subjects
constexpr size_t kColumnsMax = 110;

struct Source {
  std::string path;                // from the repository root
  std::vector<std::string> lines;  // line n is lines[n - 1]
};

// An offence is "path:line: text", ready to be clicked on.
using Offences = std::vector<std::string>;

void add(Offences& offences, const Source& s, size_t index, const std::string& why) {
  const std::string text = index < s.lines.size() ? s.lines[index] : "";
  offences.push_back(s.path + ":" + std::to_string(index + 1) + ": " + why + ": " + text);
}

std::string report(const Offences& offences) {
  std::string out;
  for (const std::string& o : offences) out += "\n  " + o;
  return out;
}

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }
bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}
bool is_header(const Source& s) { return ends_with(s.path, ".h"); }

const std::vector<Source>& tree() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> out;
    for (const char* folder : kFolders) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string path = entry.path().generic_string();
        const bool source = ends_with(path, ".h") || ends_with(path, ".cc") || ends_with(path, ".cu");
        if (!entry.is_regular_file() || !source) continue;
        Source s{path, {}};
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) s.lines.push_back(line);
        out.push_back(std::move(s));
      }
    }
    std::sort(out.begin(), out.end(), [](const Source& a, const Source& b) { return a.path < b.path; });
    return out;
  }();
  return sources;
}

// A line without its comment, cut into what is code and what is inside string literals. The tree has no block
// comments.
struct Line {
  std::string code;
  std::vector<std::string> literals;
};

Line cut(const std::string& text) {
  Line line;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '/' && i + 1 < text.size() && text[i + 1] == '/') break;
    const bool separator =
        c == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));  // 100'000
    if (c != '"' && (c != '\'' || separator)) {
      line.code += c;
      continue;
    }
    std::string literal;
    for (++i; i < text.size() && text[i] != c; ++i) {
      if (text[i] == '\\') literal += text[i++];
      if (i < text.size()) literal += text[i];
    }
    line.code += c == '"' ? "\"\"" : "' '";
    if (c == '"') line.literals.push_back(literal);
  }
  return line;
}

// The file that a line includes, as written between the marks; empty: no include.
std::string included(const std::string& line, char open, char close) {
  size_t at = line.find_first_not_of(" \t");
  if (at == std::string::npos || line[at] != '#') return "";
  at = line.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return "";
  const size_t begin = line.find(open, at + 7);
  const size_t end = begin == std::string::npos ? begin : line.find(close, begin + 1);
  return end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

// ---- Directions of includes ----

// A part of the tree: the paths that belong to it and those that it may include, as prefixes. The first part
// that matches counts. The common ground is open to all but the verifier, which shares only the program with
// the planner.
struct Part {
  std::vector<std::string> files, may_include;
  bool common = true;
};

const std::vector<std::string> kCommonGround = {
    "engine/program.", "engine/op.",         "engine/graph.",   "engine/error.",       "engine/parallel.",
    "engine/pack.",    "engine/range_load.", "engine/segment.", "engine/strict_json.", "engine/suggest.",
    "engine/clock.",   "engine/units.",      "engine/low_rank.",
    "engine/affinity."};

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {
      {kCommonGround, {}},
      {{"engine/verify"}, {"engine/verify", "engine/program.h", "engine/error.h"}, false},
      {{"engine/simulate", "engine/machine_rates", "engine/network.", "engine/drives."},
       {"engine/simulate", "engine/machine_rates", "engine/network.", "engine/drives."}},
      {{"engine/profile/attribute."},
       {"engine/profile/attribute.", "engine/simulate.h", "engine/machine_rates.h"}},
      {{"engine/profile/occupancy."}, {"engine/profile/occupancy.", "engine/simulate.h"}},
      {{"engine/profile/"},
       {"engine/profile/", "engine/plan/plan.h", "engine/run/", "engine/network.h", "engine/drives.h"}},
      {{"engine/text"}, {"engine/text"}},
      {{"engine/plan/"}, {"engine/plan/", "engine/simulate.h", "engine/machine_rates.h"}},
      {{"engine/run/"},
       {"engine/run/", "engine/plan/plan.h", "engine/plan/choices.h", "engine/verify", "engine/network.h",
        "engine/drives.h", "models/", "offload/", "cpu_optim/", "gpu/"}},
      {{"models/"}, {"models/", "cpu_optim/optimizer.h"}},  // the latter for rounding to 16 bits
      {{"offload/"}, {"offload/"}},
      {{"cpu_optim/"}, {"cpu_optim/"}},
      {{"gpu/"}, {"gpu/", "cpu_optim/"}},
      {{"tools/"}, {"engine/", "models/", "offload/", "cpu_optim/", "gpu/", "tools/"}},
      {{"tests/"}, {"engine/", "models/", "offload/", "cpu_optim/", "gpu/", "tools/", "tests/"}},
  };
  return all;
}

bool matches(const std::string& path, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& p) { return starts_with(path, p); });
}

Offences wrong_includes(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    const auto part =
        std::find_if(parts().begin(), parts().end(), [&](const Part& p) { return matches(s.path, p.files); });
    if (part == parts().end()) {
      add(out, s, 0, "belongs to no part of the tree that this test knows");
      continue;
    }
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const std::string target = included(s.lines[i], '"', '"');
      if (target.empty() || matches(target, part->may_include)) continue;
      if (part->common && matches(target, kCommonGround)) continue;
      add(out, s, i, "an include in the wrong direction");
    }
  }
  return out;
}

TEST(Structure, TheWholeTreeIsRead) {
  // By number, so that a test that runs in the wrong directory fails: more files than one folder has, from
  // every folder.
  EXPECT_GT(tree().size(), 100u);
  for (const char* folder : kFolders)
    EXPECT_TRUE(std::any_of(tree().begin(), tree().end(),
                            [&](const Source& s) { return starts_with(s.path, folder); }))
        << folder << " has no sources: tests run in the repository root";
}

TEST(Structure, IncludesPointOneWay) { EXPECT_EQ(report(wrong_includes(tree())), ""); }

TEST(Structure, WrongIncludesAreFound) {
  const struct {
    const char *path, *target;
    size_t offences;
  } cases[] = {
      {"engine/graph.cc", "engine/plan/plan.h", 1},   {"engine/verify_x.cc", "engine/plan/stage.h", 1},
      {"engine/verify.cc", "engine/simulate.h", 1},   {"engine/verify.cc", "engine/program.h", 0},
      {"engine/verify.cc", "engine/pack.h", 1},       {"engine/simulate.cc", "engine/graph.h", 0},
      {"engine/simulate.cc", "gpu/machine.h", 1},     {"engine/text.cc", "tools/size.h", 1},
      {"engine/plan/place.cc", "gpu/machine.h", 1},   {"engine/plan/place.cc", "engine/verify.h", 1},
      {"engine/plan/place.cc", "models/family.h", 1}, {"engine/plan/place.cc", "engine/simulate.h", 0},
      {"models/gpt2.cc", "gpu/device.h", 1},          {"models/gpt2.cc", "cpu_optim/optimizer.h", 0},
      {"models/gpt2.cc", "cpu_optim/half.h", 1},      {"offload/arena.cc", "models/file.h", 1},
      {"offload/arena.cc", "engine/error.h", 0},      {"cpu_optim/adamw.cc", "gpu/device.h", 1},
      {"gpu/cpu_device.cc", "engine/plan/plan.h", 1}, {"gpu/cpu_device.cc", "offload/arena.h", 1},
      {"gpu/cpu_device.cc", "cpu_optim/half.h", 0},   {"engine/run/trainer.cc", "tools/size.h", 1},
      {"engine/run/trainer.cc", "gpu/device.h", 0},   {"tools/train.cc", "tests/mutate.h", 1},
      {"tests/x_test.cc", "tools/size.h", 0},         {"engine/unheard_of.cc", "engine/op.h", 1},
      {"engine/profile/x.cc", "engine/plan/x.h", 1},  {"engine/profile/x.cc", "engine/run/x.h", 0},
      {"engine/run/x.cc", "engine/profile/x.h", 1},   {"engine/plan/x.cc", "engine/profile/x.h", 1},
      {"engine/profile/attribute.cc", "engine/run/x.h", 1},
  };
  for (const auto& c : cases) {
    const Source wrong{c.path, {"#include \"" + std::string(c.target) + "\""}};
    EXPECT_EQ(wrong_includes({wrong}).size(), c.offences) << c.path << " includes " << c.target;
  }
}

// ---- The planner names no device, tier or lane ----

// Every name in the machine's tables, and of the devices that could stand in them.
std::set<std::string> machine_names() {
  const Machine machine = machine_of({.device = 1, .host = 1, .nvme = 1});
  std::set<std::string> names = {"cpu", "gpu", "cuda", "reference", "dram"};
  for (const Tier& t : machine.tiers) names.insert(t.name);
  for (const Lane& l : machine.lanes) names.insert(l.name);
  return names;
}

// Words of a literal, in lower case: letters, digits and _.
std::vector<std::string> words_of(const std::string& literal) {
  std::vector<std::string> words(1);
  for (const char c : literal) {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (part)
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else
      words.emplace_back();
  }
  return words;
}

Offences named_resources(const std::vector<Source>& sources) {
  static const std::regex constants("\\bk[A-Z][A-Za-z0-9]*(Lane|Tier|Device)\\b");
  const std::set<std::string> names = machine_names();
  Offences out;
  for (const Source& s : sources) {
    if (!starts_with(s.path, "engine/plan/")) continue;
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const Line line = cut(s.lines[i]);
      for (const std::string& literal : line.literals)
        for (const std::string& word : words_of(literal))
          if (names.count(word) && included(s.lines[i], '"', '"').empty())
            add(out, s, i, "a planner file names " + word);
      if (std::regex_search(line.code, constants))
        add(out, s, i, "a planner file uses the constant of a lane, tier or device");
    }
  }
  return out;
}

TEST(Structure, ThePlannerNamesNoDeviceTierOrLane) { EXPECT_EQ(report(named_resources(tree())), ""); }

TEST(Structure, NamedDevicesTiersAndLanesAreFound) {
  for (const char* name :
       {"device", "host", "nvme", "compute", "h2d", "d2h", "nvme_read", "nvme_write", "optimizer"})
    EXPECT_EQ(machine_names().count(name), 1u) << name;
  const Source wrong{
      "engine/plan/x.cc",
      {"if (tier.name == \"host\") return;", "in.lane = kComputeLane;", "use(\"the h2d lane\");"}};
  const Offences found = named_resources({wrong});
  ASSERT_EQ(found.size(), 3u) << report(found);
  EXPECT_EQ(found[1],
            "engine/plan/x.cc:2: a planner file uses the constant of a lane, tier or device: in.lane = "
            "kComputeLane;");
  const Source right{
      "engine/plan/x.cc",
      {"// a comment may speak of the host and of \"nvme\"", "constexpr size_t kLanesMax = 16;",
       "throw_shortage(\"hosts of computed things\", 100'000, '\"', \"//\");"}};
  EXPECT_EQ(report(named_resources({right})), "");
  EXPECT_EQ(report(named_resources({{"gpu/x.cc", {"return \"host\";"}}})), "");
}

// ---- Environment and libraries ----

Offences environment_reads(const std::vector<Source>& sources) {
  static const std::regex reads("\\b(getenv|secure_getenv|setenv|putenv|environ)\\b");
  Offences out;
  for (const Source& s : sources) {
    if (starts_with(s.path, "tools/") || starts_with(s.path, "tests/")) continue;
    for (size_t i = 0; i < s.lines.size(); ++i)
      if (std::regex_search(cut(s.lines[i]).code, reads)) add(out, s, i, "only tools/ reads the environment");
  }
  return out;
}

// A library's headers and the only sources that may include them. Programs of their own, as every benchmark
// is one, are left out: they link what they compare with.
struct LibraryHome {
  const char* header;  // prefix of what stands between < and >
  std::vector<std::string> files;
};

const std::vector<LibraryHome>& library_homes() {
  static const std::vector<LibraryHome> homes = {
      {"CLI", {"tools/command_line.cc"}},  // slow to compile: one translation unit
      {"tbb/", {"engine/parallel.cc"}},    // all threading goes through parallel.h
      {"oneapi/tbb", {"engine/parallel.cc"}},
      {"oneapi/dnnl", {"gpu/cpu_blas.cc"}},
      {"cblas", {"gpu/cpu_blas.cc"}},
      {"omp.h", {"gpu/cpu_blas.cc"}},
      {"cuda", {"gpu/cuda_error.h", "gpu/cuda_toolkit.h", "tests/cuda_", "tests/emulation/"}},
      {"cublas", {"gpu/cuda_error.h", "tests/emulation/"}},
      {"nvtx3", {"gpu/cuda_streams.cc", "tests/emulation/"}},
      {"nccl", {"tests/cuda_nccl_test.cc"}},  // opened at run time
      {"liburing", {"offload/uring_queue.cc"}},
      {"hwloc", {"offload/"}},
      {"gtest", {"tests/"}},
      {"benchmark", {}},
  };
  return homes;
}

Offences misplaced_libraries(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    if (starts_with(s.path, "tools/benchmarks/")) continue;
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const std::string target = included(s.lines[i], '<', '>');
      for (const LibraryHome& home : library_homes())
        if (starts_with(target, home.header) && !matches(s.path, home.files))
          add(out, s, i, "this library has its home elsewhere");
      if (target == "nlohmann/json.hpp" && is_header(s))
        add(out, s, i, "headers include json_fwd.hpp at most");
    }
  }
  return out;
}

TEST(Structure, OnlyToolsReadTheEnvironment) { EXPECT_EQ(report(environment_reads(tree())), ""); }

TEST(Structure, LibrariesStayWhereTheyBelong) { EXPECT_EQ(report(misplaced_libraries(tree())), ""); }

TEST(Structure, EnvironmentAndMisplacedLibrariesAreFound) {
  EXPECT_EQ(environment_reads({{"gpu/x.cc", {"// getenv", "auto* v = std::getenv(\"HOME\");"}}}).size(), 1u);
  EXPECT_EQ(environment_reads({{"tools/x.cc", {"auto* v = std::getenv(\"HOME\");"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"tools/x.cc", {"#include <CLI/CLI.hpp>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"tools/command_line.cc", {"#include <CLI/CLI.hpp>"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"gpu/x.cc", {"#  include <tbb/task_arena.h>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"models/x.h", {"#include <nlohmann/json.hpp>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"models/x.h", {"#include <nlohmann/json_fwd.hpp>"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"models/x.cc", {"#include <nlohmann/json.hpp>"}}}).size(), 0u);
}

// ---- Headers, tests, lengths ----

Offences poor_headers(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    if (!is_header(s)) continue;
    if (s.lines.empty() || !starts_with(s.lines.front(), "// "))
      add(out, s, 0, "a header starts with a comment");
    // "-inl.h" is compiled once per vector target: Highway's guard is a toggle.
    const std::string guard = ends_with(s.path, "-inl.h") ? "#undef" : "#pragma once";
    if (std::none_of(s.lines.begin(), s.lines.end(),
                     [&](const std::string& l) { return starts_with(l, guard); }))
      add(out, s, 0, "lacks " + guard);
  }
  return out;
}

Offences tests_without_assertion(const std::vector<Source>& sources) {
  static const std::regex assertion("\\b(EXPECT|ASSERT)_[A-Z_]+\\(");
  Offences out;
  for (const Source& s : sources) {
    if (!starts_with(s.path, "tests/") || !ends_with(s.path, "_test.cc")) continue;
    if (std::none_of(s.lines.begin(), s.lines.end(),
                     [&](const std::string& line) { return std::regex_search(cut(line).code, assertion); }))
      add(out, s, 0, "a test that asserts nothing");
  }
  return out;
}

Offences long_files(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources)
    if (s.lines.size() > kLinesMax)
      add(out, s, kLinesMax, "more than " + std::to_string(kLinesMax) + " lines");
  return out;
}

Offences long_lines(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources)
    for (size_t i = 0; i < s.lines.size(); ++i)
      if (s.lines[i].size() > kColumnsMax)
        add(out, s, i, "more than " + std::to_string(kColumnsMax) + " columns");
  return out;
}

TEST(Structure, HeadersStartWithTheirContract) { EXPECT_EQ(report(poor_headers(tree())), ""); }

TEST(Structure, EveryTestAsserts) { EXPECT_EQ(report(tests_without_assertion(tree())), ""); }

TEST(Structure, FilesHaveOneSubject) { EXPECT_EQ(report(long_files(tree())), ""); }

TEST(Structure, LinesFitTheWidth) { EXPECT_EQ(report(long_lines(tree())), ""); }

TEST(Structure, PoorHeadersEmptyTestsAndWhatIsTooLongAreFound) {
  EXPECT_EQ(poor_headers({{"gpu/x.h", {"#pragma once"}}}).size(), 1u);
  EXPECT_EQ(poor_headers({{"gpu/x.h", {"// What it is for."}}}).size(), 1u);
  EXPECT_EQ(poor_headers({{"gpu/x.h", {"// What it is for.", "#pragma once"}}}).size(), 0u);
  EXPECT_EQ(poor_headers({{"gpu/x.cc", {"int x;"}}}).size(), 0u);
  EXPECT_EQ(tests_without_assertion({{"tests/x_test.cc", {"// EXPECT_EQ(1, 1);"}}}).size(), 1u);
  EXPECT_EQ(tests_without_assertion({{"tests/x_test.cc", {"  ASSERT_TRUE(ok);"}}}).size(), 0u);
  EXPECT_EQ(long_files({{"gpu/x.cc", std::vector<std::string>(kLinesMax)}}).size(), 0u);
  EXPECT_EQ(long_files({{"gpu/x.cc", std::vector<std::string>(kLinesMax + 1)}}).size(), 1u);
  EXPECT_EQ(long_lines({{"gpu/x.cc", {std::string(kColumnsMax, 'x')}}}).size(), 0u);
  EXPECT_EQ(long_lines({{"gpu/x.cc", {"", std::string(kColumnsMax + 1, 'x')}}}).size(), 1u);
}

}  // namespace
}  // namespace sluice
