// OUT/rank-N.status: how a rank of a launched run ended, or that it has begun. The file is one line: the
// rank's exit code and a sentence. Several processes write into the same directory, and errors are ignored:
// on a full drive the file stays as it was, and without a directory there is none.
#pragma once

#include <string>

#include "engine/base/error.h"

namespace sluice {

std::string status(ExitCode code, const std::string& sentence);

// The status that a rank begins with. It stays if the rank ends without writing another.
std::string no_word();

bool has_status(const std::string& out_directory, int rank, const std::string& words);

void write_status(const std::string& out_directory, int rank, const std::string& words);

// Writes the status of rank `missing` in its place, if that rank has written only no_word(). What that rank
// writes in the same instant stays, unless the file system cannot exchange two names. `writer`: the rank that
// calls.
void write_status_for(const std::string& out_directory, int missing, const std::string& words, int writer);

// Removes the statuses of ranks `first` and above, which an earlier run with more ranks has left.
void remove_statuses(const std::string& out_directory, int first);

}  // namespace sluice
