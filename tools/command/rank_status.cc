#include "tools/command/rank_status.h"

#include <fcntl.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace sluice {

namespace {

namespace fs = std::filesystem;

std::string status_path(const std::string& out_directory, int rank) {
  return (fs::path(out_directory) / ("rank-" + std::to_string(rank) + ".status")).string();
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Writes a file beside the status of `rank`, and returns its path; "": it cannot be written.
std::string fresh_status(const std::string& out_directory, int rank, const std::string& words, int writer) {
  std::error_code ignored;
  if (!fs::is_directory(out_directory, ignored)) return "";
  std::string fresh = status_path(out_directory, rank) + ".by" + std::to_string(writer);
  std::ofstream file(fresh);
  file << words << "\n";
  file.close();
  if (file) return fresh;
  fs::remove(fresh, ignored);
  return "";
}

}  // namespace

std::string status(ExitCode code, const std::string& sentence) {
  return std::to_string(static_cast<int>(code)) + " " + sentence;
}

std::string no_word() {
  return status(ExitCode::rank_lost, "This rank was ended from outside, before it could say why.");
}

bool has_status(const std::string& out_directory, int rank, const std::string& words) {
  return first_line(status_path(out_directory, rank)) == words;
}

void write_status(const std::string& out_directory, int rank, const std::string& words) {
  std::error_code ignored;
  const std::string fresh = fresh_status(out_directory, rank, words, rank);
  if (!fresh.empty()) fs::rename(fresh, status_path(out_directory, rank), ignored);
}

void write_status_for(const std::string& out_directory, int missing, const std::string& words, int writer) {
  const std::string path = status_path(out_directory, missing);
  const std::string fresh = fresh_status(out_directory, missing, words, writer);
  if (fresh.empty()) return;
  const bool is_exchanged = renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0;
  const bool is_silent = first_line(is_exchanged ? fresh : path) == no_word();
  std::error_code ignored;
  if (is_exchanged == is_silent)
    fs::remove(fresh, ignored);  // `fresh` has the status of the start, or could not replace the status
  else
    fs::rename(fresh, path, ignored);
}

void remove_statuses(const std::string& out_directory, int first) {
  std::error_code ignored;
  while (fs::remove(status_path(out_directory, first), ignored)) ++first;
}

}  // namespace sluice
