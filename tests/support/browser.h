// Pages in a real browser: headless Chromium opens them from the drive. Tests are skipped where there is no
// chromium.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cli_support.h"

namespace sluice {

inline bool has_chromium() { return std::system("command -v chromium > /dev/null 2>&1") == 0; }

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

// A page that shows `page` in frames of these widths. Once they are loaded, its body has in data-frames what
// `facts`, an expression of JavaScript, says of each frame's window `w`.
inline std::string in_frames(std::string page, const std::vector<int>& widths, const std::string& facts) {
  for (const auto& [c, name] : {std::pair{'&', "&amp;"}, {'"', "&quot;"}})
    for (size_t at = 0; (at = page.find(c, at)) != std::string::npos; ++at) page.replace(at, 1, name);
  std::string out = "<!doctype html><body>";
  for (const int width : widths)
    out += "<iframe style='border:0;height:900px;width:" + std::to_string(width) + "px' srcdoc=\"" + page +
           "\"></iframe>";
  return out + R"(<script>onload = () => {
    const windows = [...document.querySelectorAll("iframe")].map((frame) => frame.contentWindow);
    document.body.dataset.frames = windows.map((w) => )" +
         facts + R"().join("; ");
  };</script>)";
}

}  // namespace sluice
