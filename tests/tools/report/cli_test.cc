// `sluice report` as a user meets it: real runs, files that were damaged or are growing, and refusals.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/run/train/metrics.h"
#include "tests/support/report_support.h"
#include "tools/report/run.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

nlohmann::json runs_of(const std::string& page) { return nlohmann::json::parse(data_of(page)); }

class ReportCli : public Cli {
 protected:
  std::string page(const std::string& name = "report.html") const {
    return read_text_file(directory / name, 1 << 26);
  }
  CommandResult report(const Words& runs) const {
    Words words{"report"};
    for (const std::string& run : runs) words.push_back(directory / run);
    return run(words + Words{"--out", directory / "report.html"});
  }
};

TEST_F(ReportCli, ShowsRunsAndTheOptionsInWhichTheyDiffer) {
  ASSERT_EQ(run(train("first", 6,
                      {"--val-data", validation, "--val-every", "2", "--val-batches", "2", "--clip", "0.5"}))
                .code,
            0);
  ASSERT_EQ(run(train("second", 4, {"--warmup", "2"})).code, 0);
  const CommandResult result = report({"first", "second"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 3u);
  EXPECT_NE(result.out.find("first: step 6, loss "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("best validation loss "), std::string::npos) << result.out;
  EXPECT_TRUE(result.out.ends_with("Open " + directory / "report.html" + "\n")) << result.out;
  const std::string html = page();
  for (const std::string& words : {std::string("<h1>2 runs</h1>"),
                                   "<td>" + std::string(kTiny) +
                                       "</td><td class=\"n\">6</td>"
                                       "<td class=\"n\">768</td>",
                                   std::string("<td><code>--warmup</code></td><td>0</td><td>2</td>"),
                                   "<td><code>--val-data</code></td><td>" + validation + "</td><td>none</td>",
                                   std::string("<td><code>--clip</code></td><td>0.5</td><td>1</td>")})
    EXPECT_NE(html.find(words), std::string::npos) << words;
  EXPECT_EQ(html.find("<code>--seed</code>"), std::string::npos) << "it is the same";
  for (const char* part : {"http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttp", "import("})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  const nlohmann::json runs = runs_of(html);
  ASSERT_EQ(runs.size(), 2u);
  const ReportedRun first = read_run(directory / "first");
  EXPECT_EQ(first.clip, 0.5);
  EXPECT_EQ(runs[0]["curves"]["loss"]["steps"], (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(runs[0]["curves"]["val_loss"]["steps"], (std::vector<int>{2, 4, 6}));
  EXPECT_EQ(runs[0]["curves"]["clipped"]["steps"].size(), static_cast<size_t>(first.clipped));
  EXPECT_FALSE(runs[1]["curves"].contains("val_loss"));
  EXPECT_EQ(report({"first"}).code, 0) << "a report is replaced";
  EXPECT_NE(page().find("<h1>" + directory / "first" + "</h1>"), std::string::npos);
}

// A run may write its metrics elsewhere; its checkpoint knows where.
TEST_F(ReportCli, FindsTheMetricsOfTheRun) {
  ASSERT_EQ(run(train("run", 2, {"--metrics", directory / "elsewhere"})).code, 0);
  EXPECT_EQ(report({"run"}).code, 0);
  EXPECT_EQ(runs_of(page())[0]["curves"]["loss"]["steps"].size(), 2u);
}

TEST_F(ReportCli, ARunWithoutACheckpointIsShownToo) {
  write_run(directory / "young", steps_text(1, 30));
  ASSERT_EQ(report({"young"}).code, 0);
  EXPECT_NE(page().find("no checkpoint yet"), std::string::npos);
  const ReportedRun young = read_run(directory / "young");
  EXPECT_EQ(young.clip, std::nullopt);
  EXPECT_EQ(young.last_step, 30);
  EXPECT_EQ(young.tokens, 30 * 256);
}

// After a resume, the steps that ran again are shown as they ran the last time. Later steps of the first time
// are not shown.
TEST_F(ReportCli, TheLastTimeOfAStepCounts) {
  std::string lines =
      steps_text(1, 20) + validation_text(20, 9) + steps_text(21, 30) + validation_text(30, 1);
  lines += steps_text(21, 25, 100) + validation_text(25, 8) + validation_text(25, 7);
  write_run(directory / "run", lines + "{\"step\":26,\"time\":1,\"lo");
  const ReportedRun run = read_run(directory / "run");
  EXPECT_EQ(run.last_step, 25);
  EXPECT_EQ(run.tokens, 25 * 256);
  EXPECT_EQ(run.best_validation, 7);
  EXPECT_EQ(run.best_validation_step, 25);
  const Curve& loss = run.curves.front().second;
  ASSERT_EQ(loss.size(), 25u);
  EXPECT_EQ(loss.values[19], loss_at(20));
  EXPECT_EQ(loss.values[20], loss_at(21) + 100);
}

// A repeated step counts once in the curve of the routers' loss, too. Runs without routers have no such
// curve.
TEST_F(ReportCli, ThePartOfRoutersIsACurve) {
  const auto step = [](int64_t number, double router_loss) {
    StepMetrics m;
    m.step = number, m.loss = 2, m.router_loss = router_loss;
    std::string line;
    append_line(line, m, 1);
    return line;
  };
  write_run(directory / "run", step(1, 0.5) + step(2, 0.25) + step(2, 0.125));
  write_run(directory / "dense", steps_text(1, 2));
  const auto curve = [&](const std::string& run) {
    std::vector<double> values;
    for (const auto& [name, found] : read_run(directory / run).curves)
      if (name == "router_loss") values = found.values;
    return values;
  };
  EXPECT_EQ(curve("run"), (std::vector<double>{0.5, 0.125}));
  EXPECT_EQ(curve("dense"), std::vector<double>());
}

// A tier may appear on the way, and a number may be missing.
TEST_F(ReportCli, ATierMayAppearLater) {
  StepMetrics m = step_at(31);
  m.loss = NAN;
  m.peak_bytes.insert(m.peak_bytes.begin(), {"device", 1 << 20});
  std::string lines = steps_text(1, 30);
  append_line(lines, m, 1);
  write_run(directory / "run", lines);
  ASSERT_EQ(report({"run"}).code, 0);
  const nlohmann::json curves = runs_of(page())[0]["curves"];
  EXPECT_EQ(curves["memory device"]["steps"], std::vector<int>{31});
  EXPECT_EQ(curves["memory host"]["steps"].size(), 31u);
  EXPECT_TRUE(curves["loss"]["values"][30].is_null());
}

TEST_F(ReportCli, RefusesWhatIsNoRun) {
  const auto refused = [&](const Words& more, int code, const Words& parts) {
    expect_refusal(Words{"report"} + more + Words{"--out", directory / "report.html"}, code, parts);
    EXPECT_FALSE(fs::exists(directory / "report.html"));
  };
  fs::create_directory(directory / "empty");
  write_run(directory / "begun", "");
  write_run(directory / "foreign", steps_text(1, 3) + "hello\n" + steps_text(4, 5));
  write_run(directory / "good", steps_text(1, 3));
  refused({directory / "no"}, 2, {"does not exist", "Name a run directory"});
  refused({text}, 2, {"is no directory"});
  refused({directory / "empty"}, 2, {"it has no metrics.jsonl"});
  refused({directory / "begun"}, 2, {"holds no step yet"});
  refused({directory / "good", directory / "foreign"}, 5, {"Line 4 of", "is not a metrics line"});
  refused({directory / "good", directory / "good/"}, 2, {"are the same directory"});
  expect_refusal({"report"}, 2, {"`sluice report` needs --run."});
  expect_refusal({"report", directory / "good", "--out", text}, 2, {"is there already, and is no report"});
  expect_refusal({"report", directory / "good", "--out", directory.path()}, 2, {"is no report"});
  expect_refusal({"report", directory / "good", "--out", directory / "no/report.html"}, 4, {"report.html"});
}

// Names of directories and values of options mean nothing in HTML and in the page's data.
TEST_F(ReportCli, NamesAreEscaped) {
  const std::string name = "a<b>&\"'</script>";
  fs::create_directories(directory / name);
  write_run(directory / name, steps_text(1, 3));
  ASSERT_EQ(report({name}).code, 0);
  EXPECT_EQ(page().find("<b>&"), std::string::npos);
  EXPECT_EQ(runs_of(page())[0]["name"], directory / name);
}

// A million steps: the page stays small, and so does what the command takes.
TEST_F(ReportCli, AMillionStepsAreThinned) {
  for (int64_t from = 1; from < 1'000'000; from += 50'000) {
    const std::string lines = steps_text(from, from + 49'999) + validation_text(from + 49'999, 3);
    append_run(directory / "long", lines);
  }
  const CommandResult result = report({"long"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string html = page();
  EXPECT_LT(html.size(), 2'000'000u);
  EXPECT_LT(result.peak_bytes, uint64_t{600} << 20);
  const nlohmann::json curves = runs_of(html)[0]["curves"];
  for (const auto& [name, curve] : curves.items()) EXPECT_LE(curve["steps"].size(), 2002u) << name;
  EXPECT_EQ(curves["loss"]["steps"].back(), 1'000'000);
  EXPECT_EQ(curves["val_loss"]["steps"].size(), 20u);
}

TEST_F(ReportCli, SamplesOfManyStepsAreSpreadAndThoseOfAnEarlierTryLeftOut) {
  std::string metrics;
  for (int64_t step = 1; step <= 100; ++step)
    metrics += steps_text(step, step) + samples_text(step, "old " + std::to_string(step));
  metrics += steps_text(60, 60) + samples_text(60, "new\n60");  // the run went back to step 59
  write_run(directory / "run", metrics);
  const ReportedRun run = read_run(directory / "run");
  ASSERT_EQ(run.samples.size(), kSampledSteps);
  EXPECT_EQ(run.samples.front().step, 1);
  EXPECT_EQ(run.samples.back().step, 60);
  EXPECT_EQ(run.samples.back().texts.front().text, "new\n60");
  for (size_t i = 1; i < run.samples.size(); ++i) EXPECT_GT(run.samples[i].step, run.samples[i - 1].step);
  ASSERT_EQ(report({"run"}).code, 0);
  EXPECT_NE(page().find("<div class=\"sample\">new\n60</div>"), std::string::npos);
  EXPECT_EQ(page().find("old 100"), std::string::npos);
}

}  // namespace
}  // namespace sluice
