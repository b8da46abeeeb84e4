// The page of `sluice report`: tables of the runs, and their curves. What is its own of the page's body,
// style and script is tools/report/runs.*, built into the command (cmake/embed.cmake).
#pragma once

#include <string>
#include <vector>

#include "tools/report/run.h"

namespace sluice {

// Stands near the begin of every page, by which a page that may be replaced is told from other files.
constexpr const char* kReportMark = "<title>Sluice report: ";

// `origin`: when and by what it was written.
std::string report_page(const std::vector<ReportedRun>& runs, const std::string& origin);

}  // namespace sluice
