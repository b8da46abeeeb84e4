// The report in a real browser: headless Chromium opens it from the drive, prints nothing on its console,
// requests nothing, and shows the figures of profile.json. Skipped where there is no chromium.
#include "tools/profile/page.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "tests/support/cli_support.h"
#include "tools/profile/facts.h"
#include "tools/profile/text.h"

namespace sluice {
namespace {

using nlohmann::json;

bool has_chromium() { return std::system("command -v chromium > /dev/null 2>&1") == 0; }

// What the browser told about a page.
struct Visit {
  std::string dom;
  Words console;   // lines on the page's console
  Words requests;  // requests by pages, except for files
};

class Browser : public Cli {
 protected:
  void SetUp() override {
    if (!has_chromium()) GTEST_SKIP() << "chromium is not installed (tools/setup.sh)";
    Cli::SetUp();
  }

  Visit open(const std::string& page, const Words& more) {
    const std::string profile = directory / "browser", net_log = directory / "net.json";
    const Words words = Words{"chromium",
                              "--headless=new",
                              "--no-sandbox",
                              "--disable-gpu",
                              "--disable-dev-shm-usage",
                              "--disable-background-networking",
                              "--disable-component-update",
                              "--disable-sync",
                              "--no-first-run",
                              "--hide-scrollbars",
                              "--host-resolver-rules=MAP * ~NOTFOUND",
                              "--enable-logging=stderr",
                              "--log-net-log=" + net_log,
                              "--user-data-dir=" + profile,
                              "--window-size=1280,2400",
                              "--virtual-time-budget=5000"} +
                        more + Words{"file://" + page};
    Command command(directory.path(), words);
    const CommandResult result = command.wait();
    EXPECT_EQ(result.code, 0) << result.err;
    Visit visit{result.out, {}, {}};
    for (const std::string& line : lines_of(result.err))
      if (line.find("CONSOLE") != std::string::npos) visit.console.push_back(line);
    // One event a line. The browser's own requests have no page as their initiator.
    for (const std::string& line : lines_of(read_text_file(net_log, 1 << 28)))
      if (line.find("\"initiator\":") != std::string::npos &&
          line.find("\"initiator\":\"not an origin\"") == std::string::npos &&
          line.find("\"url\":\"file:") == std::string::npos)
        visit.requests.push_back(line);
    return visit;
  }
};

// A page that shows `page` in frames of these widths. Its body has what each frame has: its width with all
// that overflows, the color behind it, and how many instructions were drawn.
std::string in_frames(std::string page, const std::vector<int>& widths) {
  for (const auto& [c, name] : {std::pair{'&', "&amp;"}, {'"', "&quot;"}})
    for (size_t at = 0; (at = page.find(c, at)) != std::string::npos; ++at) page.replace(at, 1, name);
  std::string out = "<!doctype html><body>";
  for (const int width : widths)
    out += "<iframe style='border:0;height:900px;width:" + std::to_string(width) + "px' srcdoc=\"" + page +
           "\"></iframe>";
  return out + R"(<script>onload = () => {
    const windows = [...document.querySelectorAll("iframe")].map((frame) => frame.contentWindow);
    const facts = ({ document: d, getComputedStyle: style }) =>
      [d.documentElement.scrollWidth, style(d.body).backgroundColor, d.body.dataset.drawn].join(" ");
    document.body.dataset.frames = windows.map(facts).join("; ");
  };</script>)";
}

// The checks work: a page with an error and a request is found out.
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

  // On a phone and on wide screens, light and dark.
  const std::string source = read_text_file(page, 1 << 26), frames = directory / "frames.html";
  write_bytes(frames, in_frames(source, {420, 1280, 1920}));
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

  // The file itself names no other place.
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
