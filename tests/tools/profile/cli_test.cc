// `sluice profile` as a user meets it: its four files, runs that end early, names from files that mean
// something in HTML, and the page in a browser.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/support/cli_support.h"
#include "tools/command/version.h"

namespace sluice {
namespace {

using nlohmann::json;

std::string file_of(const std::string& directory, const char* name) {
  return read_text_file(directory + "/" + name, 1 << 26);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class ProfileCli : public Cli {
 protected:
  Words profile(const std::string& out, int64_t steps, const Words& more = {}) const {
    const Words own{"profile", "--steps", std::to_string(steps), "--out", directory / out, "--"};
    Words words = train("unused", 1, more);
    words.front() = "--device";
    words.insert(words.begin() + 1, "cpu");
    return own + words;
  }
  // Options for three tiers with little room.
  Words three_tiers() const {
    return {"--gpu-mem",  "1MiB",           "--host-mem", "66.5MiB",
            "--nvme-dir", directory.path(), "--nvme-mem", "64MiB"};
  }
  json facts_of(const std::string& out) const {
    return json::parse(file_of(directory / out, "profile.json"));
  }
};

// Checks the budgets of three_tiers(). The planner may fill what a budget leaves beside the reserve, and the
// plan's arena is no larger.
void expect_budgets(const json& f) {
  constexpr uint64_t kMib = 1 << 20;
  const json& tiers = f["occupancy"];
  for (const json& t : tiers) {
    EXPECT_EQ(t["budget"].get<uint64_t>(), t["reserve"].get<uint64_t>() + t["allowed"].get<uint64_t>());
    EXPECT_LE(t["arena"], t["allowed"]);
  }
  EXPECT_EQ(tiers[0]["budget"], kMib);
  EXPECT_EQ(tiers[0]["reserve"], 0);
  EXPECT_EQ(tiers[1]["budget"], 66 * kMib + kMib / 2);
  EXPECT_EQ(tiers[1]["reserve"], 66 * kMib) << "64, and one for each of two threads";
  EXPECT_EQ(tiers[2]["budget"], 64 * kMib);
}

void expect_origin(const json& f) {
  EXPECT_TRUE(std::regex_match(f["began"].get<std::string>(),
                               std::regex("20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ")))
      << f["began"];
  EXPECT_NE(f["host_name"], "");
  EXPECT_EQ(f["sluice_version"], kVersion);
}

TEST_F(ProfileCli, WritesWhatHappened) {
  const CommandResult result = run(profile("report", 6, three_tiers()));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("A step takes"), std::string::npos) << result.out;
  EXPECT_FALSE(std::filesystem::exists(directory / "unused"));  // no run
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "report"))
    files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"profile.json", "profile.md", "report.html", "trace.json"}));

  const json f = facts_of("report");
  EXPECT_EQ(f["state"], "done");
  EXPECT_EQ(f["exit_code"], 0);
  EXPECT_EQ(f["steps"].size(), 6u);
  EXPECT_EQ(f["steps_counted"], 4);
  double seconds = 0;
  for (const json& s : f["steps"])
    if (!s["warms_up"]) seconds += s["seconds"]["measured"].get<double>();
  const double step = f["step_seconds"]["measured"];
  EXPECT_NEAR(seconds / 4, step, 1e-9);  // sums of doubles
  EXPECT_NEAR(f["tokens_per_second"]["measured"].get<double>() * step, 4 * 32, 1e-6);
  double idle = 0;
  for (const json& s : f["stalls"]) idle += s["seconds"]["measured"].get<double>();
  EXPECT_NEAR(idle, f["idle_seconds"]["measured"].get<double>(), 1e-9);
  ASSERT_EQ(f["occupancy"].size(), 3u);
  expect_budgets(f);
  expect_origin(f);
  const std::string markdown = file_of(directory / "report", "profile.md");
  for (const char* heading :
       {"## Lanes", "## Stalls", "## Predicted against measured", "## Links", "## Memory", "## Names"})
    EXPECT_NE(markdown.find(heading), std::string::npos) << heading;
  EXPECT_EQ(f["changes_planned"], true);
  for (const json& c : f["changes"])
    EXPECT_NEAR(c["gain"].get<double>(),
                c["tokens_per_second"].get<double>() / f["unchanged"]["tokens_per_second"].get<double>() - 1,
                1e-9);
  EXPECT_NE(markdown.find(f["changes"].empty() ? "Nothing that was tried" : "| none |"), std::string::npos);
}

// What Perfetto's importer demands of this format. (Of such a trace, Perfetto showed every event and counted
// no error.)
class TraceEvents {
 public:
  void visit(const json& e) {
    const std::string phase = e["ph"], name = e["name"];
    EXPECT_FALSE(name.empty());
    EXPECT_EQ(e["pid"], 1);
    if (phase == "M") return visit_name(e, name);
    EXPECT_GE(nano(e["ts"]), 0);
    if (phase == "X") return visit_slice(e);
    if (phase == "b") return visit_begin(e, name);
    if (phase == "e") return visit_end(e, name);
    EXPECT_EQ(phase, "C");
    visit_counter(e, name);
  }

  void finish() {
    EXPECT_TRUE(process_);
    EXPECT_FALSE(threads_.contains(0)) << "Perfetto's own";
    size_t complete = 0;
    for (auto& [thread, all] : slices_) {
      EXPECT_FALSE(threads_[thread].empty());
      std::sort(all.begin(), all.end());
      for (size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].second, all[i].first) << threads_[thread];
      complete += all.size();
    }
    for (const auto& [key, begun] : open_) EXPECT_TRUE(begun.empty()) << key.first << " " << key.second;
    EXPECT_GT(pairs_, 10u);
    EXPECT_GT(complete, 100u);
    EXPECT_EQ(counters_.size(), 3u);
  }

 private:
  struct Begun {
    std::string name;
    int64_t at;
  };
  static int64_t nano(const json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

  void visit_name(const json& e, const std::string& name) {
    if (name == "thread_name") threads_[e["tid"]] = e["args"]["name"];
    process_ |= name == "process_name";
  }
  void visit_slice(const json& e) {
    EXPECT_GE(nano(e["dur"]), 0);
    slices_[e["tid"]].emplace_back(nano(e["ts"]), nano(e["ts"]) + nano(e["dur"]));
    EXPECT_GT(e["args"]["step"], -1);
  }
  void visit_begin(const json& e, const std::string& name) {
    std::vector<Begun>& outer = open_[{e["cat"], e["id2"]["local"]}];
    EXPECT_EQ(threads_[e["tid"]], e["cat"]);
    EXPECT_EQ(name == e["cat"], outer.empty()) << "the outermost one names the track";
    if (!outer.empty()) {
      EXPECT_EQ(outer.back().at, nano(e["ts"]));
      EXPECT_GT(e["args"]["bytes"], 0);
    }
    outer.push_back({name, nano(e["ts"])});
  }
  void visit_end(const json& e, const std::string& name) {
    std::vector<Begun>& begun = open_[{e["cat"], e["id2"]["local"]}];
    ASSERT_FALSE(begun.empty());
    EXPECT_EQ(begun.back().name, name);
    EXPECT_GE(nano(e["ts"]), begun.back().at);
    begun.pop_back();
    ++pairs_;
  }
  void visit_counter(const json& e, const std::string& name) {
    std::set<std::string> classes;
    for (const auto& [of_class, bytes] : e["args"].items()) {
      EXPECT_TRUE(bytes.is_number_unsigned());
      classes.insert(of_class);
    }
    EXPECT_EQ(classes, (std::set<std::string>{"weights", "gradients", "state", "caches", "activations",
                                              "workspace", "scalars"}));
    const auto [last, first] = counters_.try_emplace(name, nano(e["ts"]));
    EXPECT_GE(nano(e["ts"]), last->second);
    last->second = nano(e["ts"]);
  }

  std::map<int, std::vector<std::pair<int64_t, int64_t>>> slices_;  // by thread: begin, end in nanoseconds
  std::map<std::pair<std::string, std::string>, std::vector<Begun>> open_;  // by category and id, outer first
  std::map<std::string, int64_t> counters_;                                 // time of the last value
  std::map<int, std::string> threads_;
  bool process_ = false;
  size_t pairs_ = 0;
};

TEST_F(ProfileCli, TheTraceIsWellFormed) {
  ASSERT_EQ(run(profile("report", 5, three_tiers())).code, 0);
  const json trace = json::parse(file_of(directory / "report", "trace.json"));
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  TraceEvents events;
  for (const json& e : trace["traceEvents"]) events.visit(e);
  events.finish();
}

TEST_F(ProfileCli, WhatFailsHalfWayIsReported) {
  // If numbers go wrong, the exit code is 8, and there is a report of what happened until then.
  Words words = profile("broken", 40, three_tiers());
  *(std::find(words.begin(), words.end(), "--lr") + 1) = "1e30";
  const CommandResult broken = run(words);
  EXPECT_EQ(broken.code, 8) << broken.out << broken.err;
  ASSERT_EQ(lines_of(broken.err).size(), 2u) << broken.err;
  EXPECT_EQ(lines_of(broken.err)[1], "  Start again with a smaller --lr.");  // a profile saves nothing
  const json f = facts_of("broken");
  EXPECT_EQ(f["state"], "failed");
  EXPECT_EQ(f["exit_code"], 8);
  EXPECT_NE(f["error"]["what"].get<std::string>().find("not finite"), std::string::npos);
  EXPECT_GE(f["steps"].size(), 1u);
  EXPECT_LT(f["steps"].size(), 40u);
  EXPECT_NE(file_of(directory / "broken", "report.html").find("The run failed half-way"), std::string::npos);
  EXPECT_NE(file_of(directory / "broken", "profile.md").find("The run failed half-way"), std::string::npos);
}

TEST_F(ProfileCli, ASignalEndsTheRunAndNotTheReport) {
  Command command(directory, profile("stopped", 1000, {}));
  const std::string out = directory / "stdout";
  ASSERT_TRUE(
      command.until([&] { return read_text_file(out, 1 << 20).find("step 1/") != std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  command.send(SIGTERM);
  const CommandResult result = command.wait();
  if (result.code == 0) GTEST_SKIP() << "a thousand steps were done before the signal came";
  EXPECT_EQ(result.code, 75) << result.err;
  const json f = facts_of("stopped");
  EXPECT_EQ(f["state"], "stopped");
  EXPECT_EQ(f["exit_code"], 75);
  EXPECT_LT(f["steps"].size(), 1000u);
}

// While other budgets are planned for, a signal ends the command at once, and the report is there.
TEST_F(ProfileCli, ASignalWhileItPlansLeavesTheReport) {
  Words words = profile("report", 4, {"--gpu-mem", "1MiB", "--host-mem", "128MiB"});
  *std::find(words.begin(), words.end(), kTiny) = "gpt2:layers=24,width=32,heads=2,vocab=256,context=32";
  *(std::find(words.begin(), words.end(), "--batch") + 1) = "32";
  Command command(directory, words);
  const std::string out = directory / "stdout";
  ASSERT_TRUE(command.until(
      [&] { return read_text_file(out, 1 << 20).find("report.html is written.") != std::string::npos; }));
  command.send(SIGINT);
  const CommandResult result = command.wait();
  if (result.code == 0) GTEST_SKIP() << "all was planned before the signal came";
  EXPECT_EQ(result.code, -SIGINT) << result.err;
  const json f = facts_of("report");
  EXPECT_EQ(f["state"], "done");
  EXPECT_EQ(f["changes_planned"], false);
  EXPECT_EQ(f["changes"], json::array());
  EXPECT_GT(f["unchanged"]["step_seconds"], 0);
  EXPECT_EQ(count(file_of(directory / "report", "profile.md"), "What would be faster"), 0u);
  EXPECT_EQ(count(file_of(directory / "report", "report.html"), "<h2>What would be faster"), 0u);
}

TEST_F(ProfileCli, DirectoriesThatCannotTakeAReport) {
  std::filesystem::create_directory(directory / "full");
  write_bytes(directory / "full/x", "mine");
  expect_refusal(profile("full", 4), 2, {"full", "holds something", "new, or empty"});
  expect_refusal(profile("train.txt", 4), 2, {"train.txt", "no directory"});
  expect_refusal(profile("train.txt/below", 4), 4, {"train.txt", "--out"});
  expect_refusal(profile("new", 3), 2, {"--steps is 3", "4 to 1000"});
  expect_refusal(profile("new", 1001), 2, {"--steps is 1001"});
  expect_refusal({"profile", "--out", directory / "new"}, 2, {"`--`", "--model"});
  expect_refusal(profile("new", 4, {"--host-mem", "66.1MiB"}), 3, {"budgets"});  // as train would
  EXPECT_FALSE(std::filesystem::exists(directory / "new"));
  EXPECT_EQ(read_text_file(directory / "full/x", 10), "mine");
}

// Two ranks train in this process, and the first of them is recorded. It has one more lane, on which the
// ranks exchange.
TEST_F(ProfileCli, RanksOfOneProcess) {
  const CommandResult result = run(profile("report", 5, {"--gpus", "2", "--host-mem", "256MiB"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const json f = facts_of("report");
  EXPECT_EQ(f["ranks"], 2);
  EXPECT_EQ(f["steps"].size(), 5u);
  EXPECT_NEAR(f["tokens_per_second"]["measured"].get<double>() * f["step_seconds"]["measured"].get<double>(),
              4 * 32, 1e-6);  // of both ranks
  bool exchanges = false;
  for (const json& l : f["lanes"]) exchanges |= l["lane"] == "collective" && l["moved_bytes"] > 0;
  EXPECT_TRUE(exchanges);
}

// Layers share weights for three steps; then a body copies them out, which belongs to no step.
TEST_F(ProfileCli, PhasesOfARun) {
  const CommandResult result =
      run(profile("report", 7, {"--gpus", "2", "--host-mem", "256MiB", "--share-layers-until", "3"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const json f = facts_of("report");
  EXPECT_EQ(f["steps"].size(), 7u);
  EXPECT_EQ(f["steps_counted"], 5);
  const std::string trace = file_of(directory / "report", "trace.json");
  EXPECT_NE(trace.find("\"name\":\"clone "), std::string::npos);
}

// A profile of a run begins at its checkpoint. The run stays as it is.
TEST_F(ProfileCli, ARunIsProfiledFromItsCheckpoint) {
  ASSERT_EQ(run(train("run", 3)).code, 0);
  const std::string metrics = read_text_file(directory / "run/metrics.jsonl", 1 << 20);
  const CommandResult result = run({"profile", "--steps", "5", "--out", directory / "report", "--", "--out",
                                    directory / "run", "--resume", "auto"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json f = facts_of("report");
  EXPECT_EQ(f["steps"].front()["step"], 4);
  EXPECT_EQ(f["steps"].size(), 5u);
  EXPECT_EQ(read_text_file(directory / "run/metrics.jsonl", 1 << 20), metrics);
  EXPECT_EQ(run(train("run", 3, {"--resume", "auto"})).code, 0);  // nothing was added
}

// A prediction that is far off names the machine description. An overhead of 1 s makes it so.
TEST_F(ProfileCli, ADescriptionsNameIsEscapedOnTheTerminal) {
  json machine = json::parse(read_text_file("engine/rates/machines/cpu-2core.json", 1 << 20));
  machine["name"] = std::string("a\x1b[31m\0b", 8);
  for (json& lane : machine["lanes"]) lane["overhead_seconds"] = 1;
  write_bytes(directory / "m.json", machine.dump());
  const CommandResult result = run(profile("report", 4, {"--machine", directory / "m.json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("description (a\\x1b[31m\\x00b) does not"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_NE(result.out.find("\nOpen "), std::string::npos) << result.out;
}

// A weight directory and a data file whose names would end a script or begin an element.
TEST_F(ProfileCli, NamesAreEscaped) {
  const std::string evil = "<script><b onload=x>&\"'\x01\xff";
  std::filesystem::create_directory(directory / evil);
  ASSERT_EQ(run(train("run", 1)).code, 0);
  ASSERT_EQ(run({"export", "--from", directory / "run", "--to", directory / (evil + "/m")}).code, 0);
  const std::string data = directory / (evil + "/</script>.txt");
  std::filesystem::create_directory(directory / (evil + "/<"));
  write_bytes(data, sample_text(4000));
  const CommandResult result =
      run({"profile", "--steps", "4", "--out", directory / "report", "--", "--model",
           directory / (evil + "/m"), "--data", data, "--batch", "4", "--device", "cpu"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = file_of(directory / "report", "report.html");
  EXPECT_EQ(count(page, "<script"), 3u);  // the page's own
  EXPECT_EQ(count(page, "</script"), 3u);
  EXPECT_EQ(page.find("<b onload"), std::string::npos);
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_EQ(page.find('\xff'), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;&lt;b onload=x&gt;&amp;&quot;&#39;\\x01\\xff"), std::string::npos);
  const std::string markdown = file_of(directory / "report", "profile.md");
  EXPECT_NE(markdown.find("\\<script\\>"), std::string::npos);
  EXPECT_EQ(markdown.find('\x01'), std::string::npos);
  const std::string model_named = facts_of("report")["model"];  // invalid UTF-8 is replaced
  EXPECT_NE(model_named.find("<script><b onload=x>&\"'\x01"), std::string::npos);
  EXPECT_TRUE(json::accept(file_of(directory / "report", "trace.json")));
}

}  // namespace
}  // namespace sluice
