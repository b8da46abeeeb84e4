#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/run/checkpoint/block_checksum.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kManifestBytesMax = uint64_t{64} << 20;  // 1,000 tensors on 64 writers take 16 MB

[[noreturn]] void damaged(const std::string& path, const std::string& sentence) {
  throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), sentence),
              "Use another checkpoint; --resume auto takes the newest that is complete.");
}

// The file of this name in a checkpoint. Links are refused, since they could lead out of the checkpoint.
struct InnerFile {
  std::string path;
  uint64_t bytes;
};
InnerFile file_inside(const std::string& checkpoint, const std::string& name) {
  const std::string path = (fs::path(checkpoint) / name).string();
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR)
      throw Error(ExitCode::io, fmt::format("Cannot look at {}: {}.", printable(path), std::strerror(errno)),
                  "Check the drive and the directory's permissions.");
    damaged(checkpoint, fmt::format("this is no complete checkpoint, it lacks {}", shown_name(name)));
  }
  if (!S_ISREG(status.st_mode))
    damaged(checkpoint, fmt::format("{} is not a regular file", shown_name(name)));
  return {path, static_cast<uint64_t>(status.st_size)};
}

uint64_t elements_of(const Shape& shape) { return static_cast<uint64_t>(element_count(shape)); }

}  // namespace

CheckpointReader CheckpointReader::open(const std::string& path) {
  const std::string manifest_path = file_inside(path, "manifest.json").path;
  Manifest manifest = manifest_from_json(read_text_file(manifest_path, kManifestBytesMax), manifest_path);
  CheckpointReader reader;
  reader.path_ = path;
  reader.state_ = std::move(manifest.state);
  const std::string name = fs::canonical(path).filename().string();
  if (step_of(name).value_or(reader.state_.step) != reader.state_.step)
    damaged(manifest_path,
            fmt::format("it is of step {}, but its directory is named for another step", reader.state_.step));
  reader.planes_ = stored_planes(reader.state_.optimizer, reader.state_.precision);
  std::erase_if(reader.planes_, [](const StoredPlane& plane) { return plane.what != Owned::state; });
  for (const ManifestFile& file : manifest.files) reader.open_file(file);
  std::unordered_set<const SafetensorsTensor*> taken;
  for (const ManifestTensor& tensor : manifest.tensors) {
    Tensor& entry = reader.tensors_[tensor.name];
    entry.shape = tensor.shape;
    entry.planes.resize(reader.planes_.size());
    for (const ManifestPlane& plane : tensor.planes) {
      const size_t p = reader.index_of(plane.name);
      std::vector<Piece>& pieces = entry.planes[p];
      for (const ManifestPiece& piece : plane.pieces) {
        pieces.push_back(reader.find_piece(tensor, reader.planes_[p], piece));
        if (!taken.insert(pieces.back().stored).second)
          damaged(manifest_path,
                  fmt::format("two pieces are stored as '{}' of {}", shown_name(piece.stored_as),
                              shown_name(manifest.files[piece.file].name)));
      }
    }
  }
  return reader;
}

namespace {

struct PlacedManifest {
  std::string path;
  Manifest manifest;
};

// The manifest of the run's complete checkpoint of state.step; nullopt: there is no such checkpoint, or it is
// another run's.
std::optional<PlacedManifest> manifest_of(const std::string& out_directory, const CheckpointState& state) {
  const std::string path =
      (fs::path(checkpoints_directory(out_directory)) / checkpoint_name(state.step)).string();
  if (!is_complete({state.step, path})) return std::nullopt;
  const std::string manifest_path = file_inside(path, "manifest.json").path;
  Manifest manifest = manifest_from_json(read_text_file(manifest_path, kManifestBytesMax), manifest_path);
  if (manifest.state.run != state.run) return std::nullopt;
  return PlacedManifest{manifest_path, std::move(manifest)};
}

}  // namespace

bool has_checkpoint(const std::string& out_directory, const CheckpointState& state) {
  return manifest_of(out_directory, state).has_value();
}

bool amend_checkpoint(const std::string& out_directory, const CheckpointState& state) {
  std::optional<PlacedManifest> found = manifest_of(out_directory, state);
  if (!found) return false;
  const int64_t writers = std::exchange(found->manifest.state, state).writers;
  found->manifest.state.writers = writers;
  const std::string text = manifest_to_json(found->manifest);
  OutputFile file(found->path);
  file.write(text.data(), text.size());
  file.commit();
  return true;
}

void CheckpointReader::open_file(const ManifestFile& file) {
  const auto [path, bytes] = file_inside(path_, file.name);
  if (bytes != file.bytes)
    damaged(path, fmt::format("it has {} bytes, the manifest says {}", bytes, file.bytes));
  File opened{SafetensorsFile::open(path), file.sections, {}, {}};
  opened.verified = std::make_unique<std::once_flag[]>(file.sections.size());
  for (uint64_t end = 0; const ManifestSection& section : file.sections)
    opened.ends.push_back(end += section.bytes);
  verify(opened, 0, opened.content.tensors().empty() ? bytes : opened.content.tensors().front().begin);
  file_index_[file.name] = files_.size();
  files_.push_back(std::move(opened));
}

// Verifies each section that has some of these bytes, unless it has been verified already.
void CheckpointReader::verify(const File& file, uint64_t first_byte, uint64_t bytes) const {
  const auto first = std::upper_bound(file.ends.begin(), file.ends.end(), first_byte);
  const uint64_t end = first_byte + bytes;
  for (auto s = static_cast<size_t>(first - file.ends.begin());
       s < file.ends.size() && file.ends[s] - file.sections[s].bytes < end; ++s)
    std::call_once(file.verified[s], [&] { verify_section(file, s); });
}

void CheckpointReader::verify_section(const File& file, size_t section) const {
  const uint64_t end = file.ends[section], begin = end - file.sections[section].bytes;
  std::vector<std::byte> piece(std::min<uint64_t>(8 * kChecksumBlockBytes, end - begin));
  uint64_t sum = 0;
  for (uint64_t at = begin; at < end; at += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), end - at));
    file.content.read_bytes(at, piece.size(), piece.data());
    sum += block_checksum(piece, (at - begin) / kChecksumBlockBytes);
  }
  if (sum == file.sections[section].checksum) return;
  std::string names;  // the section's first tensor
  for (const SafetensorsTensor& tensor : file.content.tensors())
    if (names.empty() && tensor.begin + tensor.bytes > begin && tensor.begin < end &&
        !tensor.name.starts_with("padding."))
      names = fmt::format(" ('{}' and what follows)", shown_name(tensor.name));
  std::string remedy = "There is no older checkpoint beside it: restore it from a copy, or train anew.";
  for (const CheckpointEntry& entry : list_checkpoints(fs::canonical(path_).parent_path().string())) {
    if (entry.step >= state_.step || !is_complete(entry)) continue;
    remedy = fmt::format("Use the checkpoint before it: {}.", printable(entry.path));
    break;
  }
  throw Error(ExitCode::malformed_file,
              fmt::format("{}: bytes {} to {}{} are not what was written: their checksum differs.",
                          printable(file.content.path()), begin, end, names),
              remedy);
}

CheckpointReader::Piece CheckpointReader::find_piece(const ManifestTensor& tensor, const StatePlane& plane,
                                                     const ManifestPiece& piece) const {
  const SafetensorsFile& file = files_[piece.file].content;
  const SafetensorsTensor* stored = file.find(piece.stored_as);
  if (stored == nullptr)
    damaged(file.path(),
            fmt::format("the manifest promises '{}', which is not there", shown_name(piece.stored_as)));
  const SafetensorsType type = safetensors_type(plane.type);
  if (stored->type != type)
    damaged(file.path(), fmt::format("'{}' is {}, not {}", shown_name(piece.stored_as),
                                     safetensors_type_name(stored->type), safetensors_type_name(type)));
  if (stored->elements() != piece.count)
    damaged(file.path(), fmt::format("'{}' has {} elements, the manifest says {} (of tensor '{}')",
                                     shown_name(piece.stored_as), stored->elements(), piece.count,
                                     shown_name(tensor.name)));
  return {piece.file, stored, piece.first, piece.count};
}

// Says what is wrong with a parameter of the model; empty if nothing is.
std::string CheckpointReader::mismatch(const Group& group, const Parameter& parameter,
                                       bool weights_only) const {
  const std::string name = shown_name(parameter.name);
  const auto found = tensors_.find(parameter.name);
  if (found == tensors_.end()) return name + " is missing";
  const Tensor& tensor = found->second;
  if (tensor.shape != parameter.shape)
    return fmt::format("{} is {}, the model wants {}", name, shown_shape(tensor.shape),
                       shown_shape(parameter.shape));
  const auto has = [&](const char* plane) { return !tensor.planes[index_of(plane)].empty(); };
  const bool was_frozen = has(frozen_weights(state_.precision).name);
  if (weights_only) return was_frozen || has(kMasterWeights.name) ? "" : name + " has no weights";
  if (!group.trainable) return was_frozen ? "" : name + " was trained, the model has it frozen";
  for (const StoredPlane& plane : planes_) {
    if (plane.frozen || has(plane.name)) continue;
    return was_frozen ? name + " was frozen, the model trains it"
                      : fmt::format("{} has no {}", name, plane.name);
  }
  return "";
}

void CheckpointReader::check_tensors(const Model& model, bool weights_only) const {
  std::vector<std::string> problems;
  std::unordered_set<std::string> known;
  for (const Group& group : groups_of_all_ranks(model)) {
    if (has_adapters(model) && !group.adapter) continue;
    for (const Parameter& parameter : group.parameters) {
      known.insert(parameter.name);
      const std::string problem = mismatch(group, parameter, weights_only);
      if (!problem.empty()) problems.push_back(problem);
    }
  }
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : tensors_)
    if (!known.contains(name)) unknown.push_back(shown_name(name) + " is not in the model");
  std::sort(unknown.begin(), unknown.end());
  problems.insert(problems.end(), unknown.begin(), unknown.end());
  if (problems.empty()) return;
  constexpr size_t kShown = 10;
  const size_t shown = std::min(problems.size(), kShown);
  throw Error(
      ExitCode::malformed_file,
      fmt::format("{}: the checkpoint does not fit the model: {}{}.", printable(path_),
                  fmt::join(problems.begin(), problems.begin() + static_cast<ptrdiff_t>(shown), "; "),
                  problems.size() > shown ? fmt::format("; and {} more", problems.size() - shown) : ""),
      "Use a checkpoint of this model, or the model of this checkpoint.");
}

void CheckpointReader::check(const Model& model) const { check_tensors(model, false); }

void CheckpointReader::check_weights(const Model& model) const { check_tensors(model, true); }

size_t CheckpointReader::index_of(std::string_view plane) const {
  const auto found =
      std::ranges::find_if(planes_, [&](const StoredPlane& stored) { return stored.name == plane; });
  CHECK(found != planes_.end(), "a plane that the optimizer does not have");
  return static_cast<size_t>(found - planes_.begin());
}

template <typename Read>
bool CheckpointReader::read_pieces(const std::string& tensor, const StatePlane& plane, uint64_t first,
                                   uint64_t count, const Read& read) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return false;
  const std::vector<Piece>& pieces = found->second.planes[index_of(plane.name)];
  if (pieces.empty()) return false;
  const uint64_t elements = elements_of(found->second.shape);
  CHECK(first <= elements && count <= elements - first, "a range outside of " + shown_name(tensor));
  auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                    [&](const Piece& p) { return p.first + p.count <= first; });
  for (uint64_t done = 0; done < count; ++piece) {
    const uint64_t at = first + done - piece->first, n = std::min(count - done, piece->count - at);
    const File& file = files_[piece->file];
    verify(file, piece->stored->begin + plane.bytes(at), plane.bytes(n));
    read(file.content, *piece->stored, at, n, done);
    done += n;
  }
  return true;
}

bool CheckpointReader::read(const std::string& tensor, const StatePlane& plane, uint64_t first,
                            uint64_t count, void* out) const {
  const auto copy = [&](const SafetensorsFile& file, const SafetensorsTensor& stored, uint64_t at, uint64_t n,
                        uint64_t done) {
    file.read_raw(stored, plane.bytes(at), plane.bytes(n), static_cast<std::byte*>(out) + plane.bytes(done));
  };
  return read_pieces(tensor, plane, first, count, copy);
}

bool CheckpointReader::read_of_writer(int64_t writer, const StatePlane& plane, const std::string& name,
                                      uint64_t elements, uint64_t first, uint64_t count, float* out) const {
  const auto found = file_index_.find(
      plane_file_name(plane, static_cast<size_t>(writer), static_cast<size_t>(state_.writers)));
  if (found == file_index_.end()) return false;
  const File& file = files_[found->second];
  const SafetensorsTensor* stored = file.content.find(name);
  if (!stored || stored->type != SafetensorsType::f32 || stored->elements() < elements)
    damaged(file.content.path(), fmt::format("'{}' is missing, is not F32, or has fewer than {} elements",
                                             shown_name(name), elements));
  CHECK(first <= elements && count <= elements - first, "a range outside of " + shown_name(name));
  verify(file, stored->begin + first * sizeof(float), count * sizeof(float));
  file.content.read_f32(*stored, first, count, out);
  return true;
}

void CheckpointReader::read_weights(const std::string& tensor, uint64_t first, uint64_t count,
                                    float* out) const {
  const auto widen = [&](const SafetensorsFile& file, const SafetensorsTensor& stored, uint64_t at,
                         uint64_t n, uint64_t done) { file.read_f32(stored, at, n, out + done); };
  CHECK(read_pieces(tensor, kMasterWeights, first, count, widen) ||
            read_pieces(tensor, frozen_weights(state_.precision), first, count, widen),
        shown_name(tensor) + " was not checked");
}

}  // namespace sluice
