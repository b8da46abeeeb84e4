// The report in a real browser: headless Chromium opens it from the drive, prints nothing on its console,
// requests nothing, and shows the figures of profile.json. Skipped where there is no chromium.
#include "tools/profile/page.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "tests/support/browser.h"
#include "tools/page/html.h"
#include "tools/profile/facts.h"
#include "tools/profile/text.h"

namespace sluice {
namespace {

using nlohmann::json;

// JavaScript that gives the page's width with all that overflows, its background color, and how many
// instructions were drawn.
constexpr const char* kFrameFacts =
    "[w.document.documentElement.scrollWidth, w.getComputedStyle(w.document.body).backgroundColor, "
    "w.document.body.dataset.drawn].join(' ')";

// Shows that the checks work: they find an error and a request in a bad page.
TEST_F(Browser, ABadPageIsFoundOut) {
  const std::string page = directory / "bad.html";
  write_bytes(page,
              "<!doctype html><img src='http://example.invalid/x.png'><script>nothing.at.all()</script>");
  const Visit visit = open(page, {"--dump-dom"});
  EXPECT_GE(visit.console.size(), 1u);
  EXPECT_GE(visit.requests.size(), 1u);
}

TEST_F(Browser, TheReportShowsTheFigures) {
  const Words command{"profile",
                      "--steps",
                      "5",
                      "--out",
                      directory / "report",
                      "--",
                      "--model",
                      kTiny,
                      "--data",
                      text,
                      "--batch",
                      "4",
                      "--threads",
                      "2",
                      "--device",
                      "cpu",
                      "--gpu-mem",
                      "1MiB",
                      "--host-mem",
                      "66.5MiB",
                      "--nvme-dir",
                      directory.path(),
                      "--nvme-mem",
                      "64MiB",
                      "--micro-batch",
                      "2"};
  ASSERT_EQ(run(command).code, 0);
  const json f = json::parse(read_text_file(directory / "report/profile.json", 1 << 26));
  const std::string page = directory / "report/report.html";
  const Visit visit = open(page, {"--dump-dom"});
  EXPECT_EQ(visit.console, Words{});
  EXPECT_EQ(visit.requests, Words{});
  size_t instructions = 0;
  const json trace = json::parse(read_text_file(directory / "report/trace.json", 1 << 26));
  for (const json& e : trace["traceEvents"])
    instructions += e["ph"] == "X" || (e["ph"] == "b" && e["name"] != e["cat"]);
  EXPECT_NE(visit.dom.find("data-drawn=\"" + std::to_string(instructions) + "\""), std::string::npos);
  const auto shows = [&](std::string words) {
    for (size_t at; (at = words.find("&#39;")) != std::string::npos;) words.replace(at, 5, "'");  // unescaped
    EXPECT_NE(visit.dom.find(words), std::string::npos) << words;
  };
  shows("<b>" + readable_seconds(f["step_seconds"]["measured"]) + "</b>");
  shows("<b>" + readable_seconds(f["step_seconds"]["predicted"]) + "</b>");
  shows(html_escaped(f["bound"]));
  for (const json& l : f["links"]) shows(readable_rate(l["bytes_per_second"], "B/s"));
  for (const json& w : f["work"]) shows(readable_seconds(w["seconds"]["measured"]));
  for (const json& c : f["changes"]) shows(html_escaped(c["change"]));
  const std::string predicted = readable_seconds(f["unchanged"]["step_seconds"]);
  shows(f["changes"].empty() ? "No plan with more memory in a tier" : "As it is, a step of " + predicted);
  shows(f["prediction_error"] < 0 ? "% below the measured" : "% above the measured");
  shows(html_escaped(f["stalls"].front()["sentence"]));
  shows(html_escaped(origin_of(f)));
  for (const json& t : f["occupancy"]) shows("<td class=\"n\">" + format_size(t["budget"]) + "</td>");
  for (const char* list : {"instruction_names", "buffer_names"})
    for (const json& n : f[list])
      shows("<td><code>" + n["name"].get<std::string>() + "</code></td><td>" + html_escaped(n["meaning"]));

  // The page fits on a phone and on wide screens, light and dark.
  const std::string source = read_text_file(page, 1 << 26), frames = directory / "frames.html";
  write_bytes(frames, in_frames(source, {420, 1280, 1920}, kFrameFacts));
  for (const auto& [scheme, color] : {std::pair{"0", "rgb(18, 24, 31)"}, {"1", "rgb(244, 246, 249)"}}) {
    std::string each;
    for (const char* width : {"420", "1280", "1920"})
      each +=
          std::string(each.empty() ? "" : "; ") + width + " " + color + " " + std::to_string(instructions);
    const Visit framed =
        open(frames, {"--dump-dom", std::string("--blink-settings=preferredColorScheme=") + scheme});
    EXPECT_NE(framed.dom.find("data-frames=\"" + each + "\""), std::string::npos) << each;
    EXPECT_EQ(framed.console, Words{});
  }

  // The file itself refers to no other file or server.
  for (const char* part :
       {"http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttp", "import(", "@font"})
    EXPECT_EQ(source.find(part), std::string::npos) << part;

  const std::string picture = directory / "page.png";
  open(page, {"--screenshot=" + picture});
  const std::string png = read_text_file(picture, 1 << 26);
  ASSERT_GT(png.size(), 24u);
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\x05\0\0\0\x09\x60", 8));  // 1280 by 2400
  EXPECT_GT(png.size(), 60000u) << "an empty page takes some ten thousand bytes";
}

}  // namespace
}  // namespace sluice
