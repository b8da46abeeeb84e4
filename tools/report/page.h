// The page of `sluice report`: tables of the runs, and their curves. The parts of body, style and script that
// only this page has are tools/report/runs.*, built into the command (cmake/embed.cmake).
#pragma once

#include <string>
#include <vector>

#include "tools/report/run.h"

namespace sluice {

// Stands near the start of every page. A file with this mark is a report, and may be replaced.
constexpr const char* kReportMark = "<title>Sluice report: ";

// `origin`: when and by what it was written.
std::string report_page(const std::vector<ReportedRun>& runs, const std::string& origin);

}  // namespace sluice
