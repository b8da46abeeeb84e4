#include "engine/run/start/nvme_directories.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/rates/drives.h"
#include "engine/run/start/devices.h"

namespace sluice {

namespace {

std::string drive_words(const DriveRates& drive) {
  return fmt::format(" ({}{:.3g} GB/s read, {:.3g} written, {:.3g} both at once)",
                     drive.directory.empty() ? "" : "taken for " + printable(drive.directory) + ": ",
                     drive.read / 1e9, drive.write / 1e9, drive.mixed / 1e9);
}

}  // namespace

std::vector<NvmeDirectory> nvme_directories(const MemoryOptions& options) {
  std::vector<NvmeDirectory> directories;
  for (const std::string& path : options.nvme_directories) directories.push_back({path});
  if (directories.size() < 2) return directories;  // a single directory has all bytes
  const std::vector<DrivePart> parts = drive_parts(resolve_machine(options).drives, kNvmeTier);
  CHECK(parts.empty() || parts.size() == directories.size(), "a drive for every directory");
  for (size_t i = 0; i < parts.size(); ++i) directories[i].part = parts[i].part;
  return directories;
}

std::string describe_directories(const MemoryOptions& options,
                                 const std::vector<NvmeDirectory>& directories) {
  const MachineRates rates = resolve_machine(options);
  const std::vector<DrivePart> parts = drive_parts(rates.drives, kNvmeTier);
  const Stripes stripes = stripes_of(directories);
  std::vector<std::string> words;
  for (uint32_t i = 0; i < directories.size(); ++i)
    words.push_back(fmt::format("{:.3g} % in {}{}", 100 * stripes.share(i), printable(directories[i].path),
                                parts.empty() ? "" : drive_words(rates.drives[parts[i].drive])));
  return fmt::format("By {} machine description {}, the nvme tier lies {}.",
                     parts.empty() ? "equal parts, for want of drives in" : "the drives of",
                     printable(rates.name), enumerated(words));
}

NvmeRoom nvme_room(const std::vector<NvmeDirectory>& directories, int sharers,
                   const std::function<uint64_t(uint64_t)>& margin_of) {
  std::map<uint64_t, size_t> seen;  // by file system: index into `places`
  std::vector<FreeSpace> places;
  for (uint32_t i = 0; i < directories.size(); ++i) {
    const std::string& path = directories[i].path;
    const auto [at, is_new] = seen.try_emplace(file_system_id(path), places.size());
    if (is_new) places.push_back({free_bytes(path) / static_cast<uint64_t>(sharers), {}});
    places[at->second].files.push_back(i);
  }
  NvmeRoom room;
  const Stripes stripes = stripes_of(directories);
  const auto names = [&](const FreeSpace& place) {
    std::vector<std::string> paths;
    for (const uint32_t file : place.files) paths.push_back(printable(directories[file].path));
    return enumerated(paths);
  };
  const TierRoom all = room_for(stripes, places);
  room.free = all.bytes;
  room.full = names(places[all.full]);
  for (FreeSpace& place : places) {
    if (place.files.size() > 1)
      room.notes.push_back(names(place) + " are on one file system: they share its space and its speed.");
    place.bytes -= std::min(place.bytes, margin_of(place.bytes));
  }
  room.after_margin = room_for(stripes, places).bytes;
  return room;
}

}  // namespace sluice
