// The shape of the tree: who may include whom, what planner files may not name, where libraries may appear,
// and what every header and test must have. Reads the sources from the repository root and names file, line
// and text of each offence.
//
// Every check is a function from sources to offences. Each also runs on small wrong sources made here, and
// must find something there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gpu/machine.h"
#include "tests/support/sources.h"

namespace sluice {
namespace {

constexpr size_t kLinesMax = 550;  // about 500: a longer file has two subjects
constexpr size_t kColumnsMax = 110;

// ---- Directions of includes ----

// A room is a folder without the rooms inside it. It may include itself and the rooms before it in rooms().
// If `only` is not empty, it may include only the earlier rooms that `only` lists.
struct Room {
  std::string path;  // ends in a slash
  std::vector<std::string> only = {};
};

const std::vector<Room>& rooms() {
  static const std::vector<Room> all = [] {
    const std::vector<std::string> ground = {"engine/base/", "engine/base/simd/", "engine/graph/",
                                             "engine/program/"};
    const auto ground_and = [&](std::vector<std::string> more) {
      more.insert(more.begin(), ground.begin(), ground.end());
      return more;
    };
    // Rooms that run programs may include only engine/plan/ of the planner's rooms.
    const std::vector<std::string> run = ground_and({"engine/verify/",
                                                     "engine/rates/",
                                                     "engine/plan/",
                                                     "cpu_optim/",
                                                     "offload/",
                                                     "offload/io/",
                                                     "offload/system/",
                                                     "gpu/",
                                                     "gpu/ranks/",
                                                     "gpu/cuda/",
                                                     "models/files/",
                                                     "models/families/",
                                                     "models/weights/",
                                                     "models/data/",
                                                     "models/text/records/",
                                                     "models/text/samples/",
                                                     "engine/run/options/",
                                                     "engine/run/ranks/",
                                                     "engine/run/execute/",
                                                     "engine/run/checkpoint/",
                                                     "engine/run/train/",
                                                     "engine/run/generate/"});
    // The start of a run predicts how long a stop takes, and a profile is compared with a prediction.
    std::vector<std::string> start = run;
    start.insert(start.end(), {"engine/simulate/", "models/prepare/"});
    std::vector<std::string> profile = start;
    profile.push_back("engine/run/start/");
    return std::vector<Room>{
        {"engine/base/"},
        {"engine/base/simd/"},
        {"engine/graph/"},
        {"engine/program/"},
        // The verifier is independent of what it judges: it shares the program with the planner and nothing
        // else.
        {"engine/verify/", {"engine/program/", "engine/base/"}},
        {"engine/rates/", ground},
        {"engine/simulate/", ground_and({"engine/rates/"})},
        // The planner knows no device, model family or file.
        {"engine/plan/lower/", ground},
        {"engine/plan/stage/", ground},
        {"engine/plan/assemble/", ground_and({"engine/plan/stage/"})},
        {"engine/plan/", ground_and({"engine/rates/", "engine/plan/lower/", "engine/plan/assemble/"})},
        {"engine/plan/search/", ground_and({"engine/rates/", "engine/simulate/", "engine/plan/",
                                            "engine/plan/lower/", "engine/plan/assemble/"})},
        // What a step uses knows nothing of how it is planned.
        {"cpu_optim/", ground},
        {"offload/system/", ground},
        {"offload/io/", ground},
        {"offload/", ground_and({"offload/io/"})},
        {"gpu/ranks/", ground},
        {"gpu/ranks/mpi/", ground_and({"gpu/ranks/"})},
        {"gpu/", ground_and({"cpu_optim/", "gpu/ranks/"})},
        {"gpu/reference/", ground_and({"gpu/", "cpu_optim/"})},
        {"gpu/cpu/", ground_and({"gpu/", "gpu/ranks/", "cpu_optim/"})},
        {"gpu/cuda/", ground_and({"gpu/", "gpu/ranks/", "cpu_optim/"})},
        {"models/files/", ground},
        {"models/families/", ground},
        {"models/weights/", ground_and({"models/files/", "models/families/"})},
        {"models/data/", ground_and({"models/files/"})},
        {"models/text/", ground},
        {"models/text/template/", ground_and({"models/text/"})},
        {"models/text/tokenizer/", ground_and({"models/files/", "models/text/"})},
        {"models/text/records/", ground_and({"models/files/", "models/text/"})},
        {"models/text/samples/", ground_and({"models/files/", "models/text/", "models/text/template/",
                                             "models/text/tokenizer/", "models/text/records/"})},
        {"models/prepare/",
         ground_and({"models/files/", "models/data/", "models/text/", "models/text/template/",
                     "models/text/tokenizer/", "models/text/records/", "models/text/samples/"})},
        {"engine/run/options/", run},
        {"engine/run/ranks/", run},
        {"engine/run/execute/", run},
        {"engine/run/checkpoint/", run},
        {"engine/run/generate/", run},
        {"engine/run/train/", run},
        {"engine/run/start/", start},
        {"engine/profile/", profile},
        {"tools/command/"},
        {"tools/prepare/"},
        {"tools/bench/"},
        {"tools/completion/"},
        {"tools/doctor/"},
        {"tools/eval/"},
        {"tools/export/"},
        {"tools/generate/"},
        {"tools/page/"},
        {"tools/plan/"},
        {"tools/profile/"},
        {"tools/report/"},
        {"tools/train/"},
        {"tools/"},
        {"tools/benchmarks/"},
        {"tools/benchmarks/gpu/"},
        {"tests/"},  // with all of its folders
    };
  }();
  return all;
}

// The room's index in rooms(), or rooms().size() if there is none.
size_t room_of(const std::string& path) {
  std::string folder = path.substr(0, path.rfind('/') + 1);
  if (folder.starts_with("tests/")) folder = "tests/";
  const auto found =
      std::find_if(rooms().begin(), rooms().end(), [&](const Room& r) { return r.path == folder; });
  return static_cast<size_t>(found - rooms().begin());
}

bool may_include(const std::string& from, const std::string& to) {
  const size_t a = room_of(from), b = room_of(to);
  if (b == rooms().size()) return false;
  if (a == b) return true;
  const std::vector<std::string>& only = rooms()[a].only;
  return b < a && (only.empty() || std::find(only.begin(), only.end(), rooms()[b].path) != only.end());
}

Offences wrong_includes(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    if (room_of(s.path) == rooms().size()) {
      add(out, s, 0, "stands in no room that this test knows");
      continue;
    }
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const std::string target = included(s.lines[i], '"', '"');
      if (!target.empty() && !may_include(s.path, target))
        add(out, s, i, "an include in the wrong direction");
    }
  }
  return out;
}

TEST(Structure, TheWholeTreeIsRead) {
  // Counts sources, so that a test that runs in the wrong directory fails. The tree has more of them than any
  // one folder, and every folder has some.
  EXPECT_GT(tree().size(), 100u);
  for (const char* folder : kFolders)
    EXPECT_TRUE(std::any_of(tree().begin(), tree().end(),
                            [&](const Source& s) { return s.path.starts_with(folder); }))
        << folder << " has no sources: tests run in the repository root";
}

TEST(Structure, IncludesPointOneWay) { EXPECT_EQ(report(wrong_includes(tree())), ""); }

TEST(Structure, WrongIncludesAreFound) {
  const struct {
    const char *path, *target;
    size_t offences;
  } cases[] = {
      {"engine/graph/x.cc", "engine/plan/plan.h", 1},
      {"engine/graph/x.cc", "engine/base/error.h", 0},
      {"engine/base/x.cc", "engine/graph/op.h", 1},
      {"engine/verify/x.cc", "engine/plan/stage/stage.h", 1},
      {"engine/verify/x.cc", "engine/simulate/simulate.h", 1},
      {"engine/verify/x.cc", "engine/program/program.h", 0},
      {"engine/verify/x.cc", "engine/graph/op.h", 1},
      {"engine/simulate/x.cc", "engine/rates/network.h", 0},
      {"engine/simulate/x.cc", "gpu/machine.h", 1},
      {"engine/plan/search/x.cc", "gpu/machine.h", 1},
      {"engine/plan/search/x.cc", "engine/verify/verify.h", 1},
      {"engine/plan/search/x.cc", "models/families/family.h", 1},
      {"engine/plan/search/x.cc", "engine/simulate/simulate.h", 0},
      {"engine/plan/lower/x.cc", "engine/plan/stage/stage.h", 1},
      {"engine/plan/x.h", "engine/plan/search/search.h", 1},
      {"models/families/x.cc", "gpu/device.h", 1},
      {"models/families/x.cc", "models/weights/hf_weights.h", 1},
      {"offload/x.cc", "models/files/safetensors.h", 1},
      {"offload/x.cc", "engine/plan/plan.h", 1},
      {"cpu_optim/x.cc", "gpu/device.h", 1},
      {"gpu/cpu/x.cc", "gpu/device.h", 0},
      {"gpu/x.cc", "gpu/cpu/rows.h", 1},
      {"gpu/cpu/x.cc", "gpu/cuda/device.h", 1},
      {"gpu/cuda/x.cc", "engine/run/execute/runner.h", 1},
      {"engine/run/execute/x.cc", "engine/plan/plan.h", 0},
      {"engine/run/execute/x.cc", "engine/plan/stage/stage.h", 1},
      {"engine/run/execute/x.cc", "engine/run/train/trainer.h", 1},
      {"engine/run/train/x.cc", "gpu/device.h", 0},
      {"engine/run/start/x.cc", "engine/profile/profile.h", 1},
      {"engine/run/start/x.cc", "tools/command/wrap.h", 1},
      {"engine/profile/x.cc", "engine/run/start/devices.h", 0},
      {"tools/train/x.cc", "tests/support/mutate.h", 1},
      {"tools/command/x.cc", "tools/bench/scale.h", 1},
      {"tests/engine/x_test.cc", "tools/command/wrap.h", 0},
      {"engine/unheard_of/x.cc", "engine/graph/op.h", 1},
      {"engine/graph/x.cc", "engine/unheard_of/x.h", 1},
  };
  for (const auto& c : cases) {
    const Source wrong{c.path, {"#include \"" + std::string(c.target) + "\""}};
    EXPECT_EQ(wrong_includes({wrong}).size(), c.offences) << c.path << " includes " << c.target;
  }
}

// Rooms whose README.md is missing or too long.
Offences poor_doors(const std::vector<Room>& all) {
  constexpr size_t kDoorLinesMax = 25;
  Offences out;
  for (const Room& room : all) {
    std::ifstream file(room.path + "README.md");
    size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    if (lines == 0 || lines > kDoorLinesMax)
      out.push_back(room.path + "README.md: has " + std::to_string(lines) +
                    " lines; 1 to 25 say what lives there");
  }
  return out;
}

TEST(Structure, EveryRoomSaysWhatLivesThere) {
  EXPECT_EQ(report(poor_doors(rooms())), "");
  EXPECT_EQ(poor_doors({{"engine/unheard_of/"}}).size(), 1u);
}

// ---- The planner names no device, tier or lane ----

// Every name in the machine tables, and every name of a device that could stand in them.
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
    if (!s.path.starts_with("engine/plan/")) continue;
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
    if (s.path.starts_with("tools/") || s.path.starts_with("tests/")) continue;
    for (size_t i = 0; i < s.lines.size(); ++i)
      if (std::regex_search(cut(s.lines[i]).code, reads)) add(out, s, i, "only tools/ reads the environment");
  }
  return out;
}

// A library's headers and the only sources that may include them. Benchmarks are exempt: they link what they
// compare with.
struct LibraryHome {
  const char* header;  // prefix of what stands between < and >
  std::vector<std::string> files;
};

const std::vector<LibraryHome>& library_homes() {
  static const std::vector<LibraryHome> homes = {
      {"CLI", {"tools/command/command_line.cc"}},  // slow to compile: one translation unit
      {"tbb/", {"engine/base/parallel.cc"}},       // all threading goes through parallel.h
      {"oneapi/tbb", {"engine/base/parallel.cc"}},
      {"oneapi/dnnl", {"gpu/cpu/blas.cc"}},
      {"cblas", {"gpu/cpu/blas.cc"}},
      {"omp.h", {"gpu/cpu/blas.cc"}},
      {"cuda",
       {"gpu/cuda/error.h", "gpu/cuda/toolkit.h", "tests/gpu/cuda/", "tests/support/cuda_",
        "tests/emulation/"}},
      {"cublas", {"gpu/cuda/error.h", "tests/emulation/"}},
      {"nvtx3", {"gpu/cuda/streams.cc", "tests/emulation/"}},
      {"nccl", {"tests/gpu/cuda/nccl_test.cc"}},  // opened at run time
      {"hwloc", {"offload/"}},
      {"oniguruma", {"models/text/tokenizer/pattern.cc"}},  // opened at run time
      {"utf8proc", {"models/text/tokenizer/nfc.cc"}},
      {"gtest", {"tests/"}},
      {"benchmark", {}},
  };
  return homes;
}

bool matches(const std::string& path, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& p) { return path.starts_with(p); });
}

Offences misplaced_libraries(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    if (s.path.starts_with("tools/benchmarks/")) continue;
    for (size_t i = 0; i < s.lines.size(); ++i) {
      const std::string target = included(s.lines[i], '<', '>');
      for (const LibraryHome& home : library_homes())
        if (target.starts_with(home.header) && !matches(s.path, home.files))
          add(out, s, i, "this library has its home elsewhere");
      // liburing.h belongs to offload/io/uring_queue.cc, and so on.
      if (target.starts_with("lib") &&
          s.path != "offload/io/" + target.substr(3, target.find('.') - 3) + "_queue.cc")
        add(out, s, i, "the library of an I/O back end belongs to its source alone");
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
  EXPECT_EQ(misplaced_libraries({{"tools/command/command_line.cc", {"#include <CLI/CLI.hpp>"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"gpu/x.cc", {"#  include <tbb/task_arena.h>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"offload/io/uring_queue.h", {"#include <liburing.h>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"offload/io/uring_queue.cc", {"#include <liburing.h>"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"offload/io/uring_queue.cc", {"#include <libaio.h>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"models/x.cc", {"#include <oniguruma.h>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"models/x.h", {"#include <nlohmann/json.hpp>"}}}).size(), 1u);
  EXPECT_EQ(misplaced_libraries({{"models/x.h", {"#include <nlohmann/json_fwd.hpp>"}}}).size(), 0u);
  EXPECT_EQ(misplaced_libraries({{"models/x.cc", {"#include <nlohmann/json.hpp>"}}}).size(), 0u);
}

// ---- Headers, tests, lengths ----

Offences poor_headers(const std::vector<Source>& sources) {
  Offences out;
  for (const Source& s : sources) {
    if (!is_header(s)) continue;
    if (s.lines.empty() || !s.lines.front().starts_with("// "))
      add(out, s, 0, "a header starts with a comment");
    // Files "-inl.h" are compiled once per vector target: Highway's guard is a toggle.
    const std::string guard = s.path.ends_with("-inl.h") ? "#undef" : "#pragma once";
    if (std::none_of(s.lines.begin(), s.lines.end(),
                     [&](const std::string& l) { return l.starts_with(guard); }))
      add(out, s, 0, "lacks " + guard);
  }
  return out;
}

Offences tests_without_assertion(const std::vector<Source>& sources) {
  static const std::regex assertion("\\b(EXPECT|ASSERT)_[A-Z_]+\\(");
  Offences out;
  for (const Source& s : sources) {
    if (!s.path.starts_with("tests/") || !s.path.ends_with("_test.cc")) continue;
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

// Finds types, by their whole name, that another file defines too. If two files define an inline member, the
// linker keeps either definition and says nothing. Unnamed namespaces are a file's own.
Offences types_defined_twice(const std::vector<Source>& sources) {
  static const std::regex opening("^(?:inline )?namespace ?([A-Za-z0-9_:]*) ?\\{$");
  static const std::regex type(
      "^(?:template .*)?(?:struct|class|enum class) (?:alignas\\(\\S+\\) )?([A-Za-z0-9_]+)(?: final)?(?: : "
      ".*)? \\{.*");
  std::map<std::string, std::string> files;
  Offences out;
  for (const Source& s : sources) {
    std::vector<std::string> spaces;
    for (size_t i = 0; i < s.lines.size(); ++i) {
      std::smatch match;
      if (std::regex_match(s.lines[i], match, opening)) {
        spaces.push_back(match[1]);
      } else if (s.lines[i].starts_with("}  // namespace") && !spaces.empty()) {
        spaces.pop_back();
      } else if (const std::string code = cut(s.lines[i]).code; std::regex_match(code, match, type)) {
        std::string name;
        for (const std::string& space : spaces) name += (space.empty() ? s.path : space) + "::";
        const auto [first, is_new] = files.emplace(name + match[1].str(), s.path);
        if (!is_new && first->second != s.path) add(out, s, i, "also in " + first->second);
      }
    }
  }
  return out;
}

TEST(Structure, HeadersStartWithTheirContract) { EXPECT_EQ(report(poor_headers(tree())), ""); }

TEST(Structure, EveryTestAsserts) { EXPECT_EQ(report(tests_without_assertion(tree())), ""); }

TEST(Structure, FilesHaveOneSubject) { EXPECT_EQ(report(long_files(tree())), ""); }

TEST(Structure, TypesAreDefinedOnce) { EXPECT_EQ(report(types_defined_twice(tree())), ""); }

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

TEST(Structure, TypesOfOneNameAreFound) {
  const Source one = {"gpu/x.h", {"namespace sluice {", "struct Item {", "};", "}  // namespace sluice"}};
  const Source two = {"gpu/y.h", {"namespace sluice {", "class Item final : Base {"}};
  const Source cuda = {"gpu/z.h", {"namespace sluice::cuda {", "class Item {"}};
  const Source own = {"gpu/z.cc", {"namespace sluice {", "namespace {", "enum class Item { a };"}};
  EXPECT_EQ(types_defined_twice({one, cuda, own}), Offences{});
  EXPECT_EQ(types_defined_twice({one, two}),
            Offences{"gpu/y.h:2: also in gpu/x.h: class Item final : Base {"});
}

}  // namespace
}  // namespace sluice
