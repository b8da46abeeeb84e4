#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "tools/command/run_verb.h"
#include "tools/command/screen.h"
#include "tools/command/version.h"
#include "tools/report/page.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Throws if `out` is the name of something other than a report. Called before runs are read.
void check_out(const std::string& out) {
  constexpr size_t kBegin = 1024;  // bytes; the mark stands within the first 400
  std::error_code ignored;
  if (!fs::exists(out, ignored)) return;
  std::string begin(kBegin, '\0');
  std::ifstream file(out, std::ios::binary);
  file.read(begin.data(), kBegin);
  if (fs::is_regular_file(out, ignored) && begin.find(kReportMark) != std::string::npos) return;
  throw Error(ExitCode::usage, "--out " + printable(out) + " is there already, and is no report.",
              "Name a new file, or a report, which is then replaced.");
}

void check_names(const std::vector<std::string>& runs) {
  std::error_code ignored;
  for (size_t i = 0; i < runs.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (fs::equivalent(runs[i], runs[k], ignored))
        throw Error(ExitCode::usage,
                    printable(runs[k]) + " and " + printable(runs[i]) + " are the same directory.",
                    "Name every run once.");
}

}  // namespace

ExitCode run_report(Options options, std::FILE* out) {
  check_out(options.report.out);
  check_names(options.report.runs);
  std::vector<ReportedRun> runs;
  for (const std::string& directory : options.report.runs) runs.push_back(read_run(directory));
  const std::string origin =
      fmt::format("{:%Y-%m-%d %H:%M} UTC, by sluice {}", fmt::gmtime(std::time(nullptr)), kVersion);
  const std::string page = report_page(runs, origin);
  OutputFile file(options.report.out);
  file.write(page.data(), page.size());
  file.commit();
  for (const ReportedRun& run : runs)
    show(out, fmt::format("{}: step {}, loss {:.4f}, smoothed{}\n", printable(run.name), run.last_step,
                          run.last_loss,
                          run.best_validation ? fmt::format(", best validation loss {:.4f} at step {}",
                                                            *run.best_validation, run.best_validation_step)
                                              : ""));
  show(out, "Open " + printable(options.report.out) + "\n");
  return ExitCode::done;
}

}  // namespace sluice
