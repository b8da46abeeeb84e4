// `sluice train --tensorboard`: an event file for each start, with the figures of the metrics file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/cli_support.h"
#include "tests/support/event_records.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class TensorBoard : public Cli {
 protected:
  std::vector<std::vector<DecodedEvent>> events() const {  // of each file, in the order of their names
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(directory / "run"))
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<std::vector<DecodedEvent>> all;
    for (const std::string& path : paths) all.push_back(decoded_events(read_text_file(path, 1 << 26)));
    return all;
  }
  std::vector<int64_t> steps_of(const std::vector<DecodedEvent>& events, const char* tag) const {
    std::vector<int64_t> steps;
    for (const DecodedEvent& event : events)
      if (event.scalars.contains(tag)) steps.push_back(event.step);
    return steps;
  }
};

// A resume goes on in a new file without being told.
TEST_F(TensorBoard, EveryStartWritesAFile) {
  ASSERT_EQ(run(train("run", 4,
                      {"--tensorboard", "--val-data", validation, "--val-every", "2", "--val-batches", "2",
                       "--checkpoint-every", "2"}))
                .code,
            0);
  ASSERT_EQ(events().size(), 1u);
  const CommandResult resumed = run({"train", "--out", directory / "run", "--resume",
                                     directory / "run/checkpoints/step-000000002", "--steps", "6"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("--tensorboard "), std::string::npos) << resumed.out;
  EXPECT_EQ(resumed.out.find("--tensorboard true"), std::string::npos) << resumed.out;
  const auto files = events();
  ASSERT_EQ(files.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_GE(files[i].size(), 2u);
    EXPECT_EQ(files[i][0].file_version, "brain.Event:2");
    EXPECT_EQ(files[i][1].session_status, 1);
    EXPECT_EQ(files[i][1].step, i == 0 ? 1 : 3);
  }
  EXPECT_EQ(steps_of(files[0], "loss/train"), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(steps_of(files[0], "loss/validation"), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(steps_of(files[1], "loss/train"), (std::vector<int64_t>{3, 4, 5, 6}));

  // The second file has what metrics.jsonl says of the same steps.
  for (const std::string& line : lines_of(read_text_file(directory / "run/metrics.jsonl", 1 << 26))) {
    const nlohmann::json m = nlohmann::json::parse(line);
    if (m["step"] < 3 || m.contains("val_loss")) continue;
    const auto event = std::ranges::find_if(files[1], [&](const DecodedEvent& e) {
      return e.step == m["step"] && e.scalars.contains("loss/train");
    });
    ASSERT_NE(event, files[1].end());
    EXPECT_EQ(event->scalars.at("loss/train"), m["loss"].get<float>());
    EXPECT_EQ(event->scalars.at("step/grad_norm"), m["grad_norm"].get<float>());
    EXPECT_EQ(event->scalars.at("step/learning_rate"), m["learning_rate"].get<float>());
    EXPECT_EQ(event->scalars.at("step/tokens_per_second"), m["tokens_per_second"].get<float>());
    EXPECT_EQ(event->scalars.at("peak_bytes/process"), m["process_peak_bytes"].get<float>());
    for (const auto& [tier, bytes] : m["peak_bytes"].items())
      EXPECT_EQ(event->scalars.at("peak_bytes/" + tier), bytes.get<float>());
    for (const auto& [lane, seconds] : m["lane_busy"].items())
      EXPECT_EQ(event->scalars.at("lane_busy/" + lane), seconds.get<float>());
    EXPECT_NEAR(event->wall_time, m["time"].get<double>(), 1e-3);
  }
}

TEST_F(TensorBoard, IsLeftOutUnlessAskedFor) {
  ASSERT_EQ(run(train("run", 2)).code, 0);
  EXPECT_TRUE(events().empty());
}

// Killed between two steps, the run leaves whole records, and its next start begins them anew.
TEST_F(TensorBoard, AKilledRunLeavesAReadableFile) {
  Command first(directory, train("run", 100'000, {"--tensorboard"}));
  ASSERT_TRUE(first.until(
      [&] { return fs::exists(directory / "run") && !events().empty() && events()[0].size() > 20; }));
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().code, -SIGKILL);
  const std::vector<int64_t> steps = steps_of(events().at(0), "loss/train");
  ASSERT_GE(steps.size(), 10u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i) + 1);
  ASSERT_EQ(run(train("run", 2, {"--tensorboard", "--resume", "auto", "--device", "cpu"})).code, 0);
  ASSERT_EQ(events().size(), 2u);
  EXPECT_EQ(events()[1][1].step, 1) << "there was no checkpoint: TensorBoard forgets all steps of the first";
}

}  // namespace
}  // namespace sluice
