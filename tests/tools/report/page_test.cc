// The report in a real browser: curves have the points of the data, and buttons do what they say.
#include "tools/report/page.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/browser.h"
#include "tests/support/report_support.h"

namespace sluice {
namespace {

class ReportPage : public Browser {
 protected:
  // A page of two runs without checkpoints, of 300 and 100 steps; the second has no validation.
  std::string two_runs() {
    write_run(directory / "long", steps_text(1, 150) + validation_text(150, 4.5) + steps_text(151, 300) +
                                      validation_text(300, 3.5));
    write_run(directory / "short", steps_text(1, 100, 1));
    const std::string page = directory / "report.html";
    EXPECT_EQ(run({"report", directory / "long", directory / "short", "--out", page}).code, 0);
    return page;
  }
  // What an expression of JavaScript gives in the page's window `w`, after `before` was run there.
  std::string value_of(const std::string& page, const std::string& before, const std::string& value) {
    const std::string frame = directory / "frame.html";
    write_bytes(frame, in_frames(read_text_file(page, 1 << 26), {1280},
                                 "{ const d = w.document; " + before + "; return " + value + "; }"));
    const Visit visit = open(frame, {"--dump-dom"});
    EXPECT_EQ(visit.console, Words{}) << before;
    const std::string mark = "data-frames=\"";
    const size_t at = visit.dom.find(mark);
    if (at == std::string::npos) return "nothing";
    return visit.dom.substr(at + mark.size(), visit.dom.find('"', at + mark.size()) - at - mark.size());
  }
};

constexpr const char* kPoints =
    "[...d.querySelectorAll('canvas')].map((c) => c.dataset.curve + ' ' + c.dataset.points).join(', ')";

TEST_F(ReportPage, DrawsEveryCurve) {
  const std::string page = two_runs();
  const Visit visit = open(page, {"--dump-dom"});
  EXPECT_EQ(visit.console, Words{});
  EXPECT_EQ(visit.requests, Words{});
  // The chart of the loss draws each point twice, raw and smoothed.
  EXPECT_NE(visit.dom.find("data-drawn=\"800 2 400 400 400 400 400\""), std::string::npos)
      << visit.dom.substr(0, 4000);
  EXPECT_NE(visit.dom.find("aria-pressed=\"true\"><i style="), std::string::npos) << "the legend";
}

TEST_F(ReportPage, ButtonsHideRunsAndChangeTheAxis) {
  const std::string page = two_runs();
  EXPECT_EQ(value_of(page, "d.querySelector('#legend button').click()", kPoints),
            "loss_smooth 200, val_loss 0, grad_norm 100, learning_rate 100, tokens_per_second 100, "
            "memory host 100, memory process 100");
  EXPECT_EQ(value_of(page, "const b = d.querySelector('#legend button'); b.click(); b.click()", kPoints),
            "loss_smooth 800, val_loss 2, grad_norm 400, learning_rate 400, tokens_per_second 400, "
            "memory host 400, memory process 400");
  EXPECT_EQ(value_of(page, "for (const b of d.querySelectorAll('#legend button')) b.click()", kPoints),
            "loss_smooth 0, val_loss 0, grad_norm 0, learning_rate 0, tokens_per_second 0, memory host 0, "
            "memory process 0");
  // The logarithmic axis draws the same points at other places, in charts of losses only.
  EXPECT_EQ(value_of(page,
                     "const all = () => [...d.querySelectorAll('canvas')].map((c) => c.toDataURL()); "
                     "const before = all(); d.getElementById('log').click(); const after = all()",
                     "before.map((b, i) => b !== after[i]).join(' ') + ' ' + "
                     "d.querySelector('canvas').dataset.points"),
            "true true false false false false false 800");
}

TEST_F(ReportPage, PointingTellsStepAndValues) {
  const std::string page = two_runs();
  const std::string point =
      "const c = d.querySelector('canvas'), box = c.getBoundingClientRect(); const at = (type, step) => "
      "c.dispatchEvent(new w.PointerEvent(type, {pointerId: 1, clientY: box.top + 50, "
      "clientX: box.left + 72 + (step - 1) / 299 * (c.clientWidth - 86)})); ";
  const std::string told = value_of(page, point + "at('pointermove', 50)", "c.nextElementSibling.innerText");
  EXPECT_TRUE(told.starts_with("step 50\n" + directory / "long: ")) << told;
  EXPECT_NE(told.find(", 7.3333 of the step alone"), std::string::npos) << told;  // loss_at(50)
  EXPECT_NE(told.find(", 8.3333 of the step alone"), std::string::npos) << told;  // and one more
  const std::string later =
      value_of(page, point + "at('pointermove', 200)", "c.nextElementSibling.innerText");
  EXPECT_EQ(later.find(directory / "short"), std::string::npos) << "it has ended long before: " << later;
  EXPECT_EQ(
      value_of(page, point + "at('pointermove', 50); at('pointerleave', 50)", "c.nextElementSibling.hidden"),
      "true");
  // Dragging from step 101 to 200 zooms all charts to these; the button leads back.
  const std::string drag = point +
                           "c.setPointerCapture = () => {}; at('pointerdown', 101); "
                           "at('pointermove', 200); at('pointerup', 200); ";
  EXPECT_EQ(value_of(page, drag, "[...d.querySelectorAll('canvas')].map((e) => e.dataset.points).join(' ')"),
            "200 1 100 100 100 100 100");
  EXPECT_EQ(value_of(page, drag + "d.getElementById('all').click()", "c.dataset.points"), "800");
}

// Clipped steps are marked where a checkpoint says what --clip was.
TEST_F(ReportPage, MarksClippedSteps) {
  ASSERT_EQ(run(train("run", 6, {"--clip", "0.1"})).code, 0);
  const std::string page = directory / "report.html";
  ASSERT_EQ(run({"report", directory / "run", "--out", page}).code, 0);
  EXPECT_EQ(value_of(page, "", "d.querySelector('canvas[data-marks]').dataset.marked"), "6");
}

TEST_F(ReportPage, ARunOfOneStepIsDrawn) {
  write_run(directory / "run", steps_text(1, 1));
  const std::string page = directory / "report.html";
  ASSERT_EQ(run({"report", directory / "run", "--out", page}).code, 0);
  EXPECT_EQ(
      value_of(page, "d.getElementById('log').click()", kPoints),
      "loss_smooth 2, grad_norm 1, learning_rate 1, tokens_per_second 1, memory host 1, memory process 1");
}

// On a phone and on wide screens: nothing overflows.
TEST_F(ReportPage, FitsNarrowAndWideScreens) {
  const std::string frames = directory / "frames.html";
  write_bytes(frames,
              in_frames(read_text_file(two_runs(), 1 << 26), {420, 1280, 1920},
                        "[w.document.documentElement.scrollWidth, w.document.body.dataset.drawn].join(' ')"));
  const Visit visit = open(frames, {"--dump-dom"});
  EXPECT_EQ(visit.console, Words{});
  const std::string drawn = " 800 2 400 400 400 400 400";
  EXPECT_NE(visit.dom.find("data-frames=\"420" + drawn + "; 1280" + drawn + "; 1920" + drawn + "\""),
            std::string::npos)
      << visit.dom.substr(visit.dom.find("data-frames="), 200);
}

}  // namespace
}  // namespace sluice
