#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "engine/base/error.h"
#include "engine/run/checkpoint/block_checksum.h"
#include "engine/run/checkpoint/checkpoint.h"
#include "engine/run/checkpoint/directory.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNowhere = UINT64_MAX;

bool stores(const StoredPlane& plane, const OwnedRange& range, const Group& group) {
  return plane.what == range.what && (plane.what != Owned::state || group.trainable != plane.frozen);
}

struct PlaneLayout {
  SafetensorsLayout file;
  std::vector<uint64_t> ranges;  // file offset of each range's first element, or kNowhere
};

struct TensorPart {
  uint32_t group, parameter;
  uint64_t first, count;  // elements of the tensor
  std::string name, stored_as;
};

// The parts of tensors that lie in a range of the rank, in order.
std::vector<TensorPart> parts_of(const Model& model, const OwnedRange& range, uint32_t rank) {
  std::vector<TensorPart> parts;
  const Group& group = model.groups[range.group];
  const std::vector<Parameter>& parameters = group.parameters;
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const auto elements = static_cast<uint64_t>(element_count(p.shape));
    const uint64_t from = std::max(range.first, p.offset),
                   to = std::min(range.first + range.elements, p.offset + elements);
    if (from >= to) continue;
    const uint64_t first = from - p.offset;
    const std::string name = name_in(group, p, part_on(model.mesh, group, rank));
    parts.push_back({range.group, i, first, to - from, name,
                     to - from == elements ? name : fmt::format("{}@{}", name, first)});
  }
  return parts;
}

// A rank's file of a plane: its ranges, with all padding declared. Without ranges, the header is empty.
PlaneLayout lay_out_plane(const Model& model, const StoredPlane& plane, const std::vector<OwnedRange>& ranges,
                          uint32_t rank) {
  PlaneLayout layout;
  layout.ranges.assign(ranges.size(), kNowhere);
  std::vector<TensorSpec> specs;
  uint64_t paddings = 0;
  const auto pad = [&](uint64_t bytes) {
    if (bytes == 0) return;
    specs.push_back({fmt::format("padding.{}", paddings++), DType::u8, {static_cast<int64_t>(bytes)}});
  };
  uint64_t begin = 0;  // bytes, from the start of the data
  for (size_t r = 0; r < ranges.size(); ++r) {
    const OwnedRange& range = ranges[r];
    const Group& group = model.groups[range.group];
    if (!stores(plane, range, group)) continue;
    layout.ranges[r] = begin;
    begin += plane.page_bytes(range.elements);
    uint64_t end = 0;  // bytes, from the start of the range
    if (range.what == Owned::factors) {
      specs.push_back({group.name, plane.type, {static_cast<int64_t>(range.elements)}});
      end = plane.bytes(range.elements);
    } else {
      for (const TensorPart& part : parts_of(model, range, rank)) {
        const Parameter& parameter = group.parameters[part.parameter];
        const uint64_t first = plane.bytes(parameter.offset + part.first - range.first);
        pad(first - end);
        const bool whole = part.stored_as == part.name;
        specs.push_back(
            {part.stored_as, plane.type, whole ? parameter.shape : Shape{static_cast<int64_t>(part.count)}});
        end = first + plane.bytes(part.count);
      }
    }
    pad(plane.page_bytes(range.elements) - end);
  }
  if (specs.empty()) return layout;
  layout.file = lay_out_safetensors(specs, {}, kCheckpointAlignment);
  for (uint64_t& offset : layout.ranges)
    if (offset != kNowhere) offset += layout.file.header.size();
  return layout;
}

// The tensor's pieces in a plane of the state.
std::vector<ManifestPiece>& pieces_of(ManifestTensor& tensor, const StatePlane& plane) {
  const auto found = std::ranges::find(tensor.planes, plane.name, &ManifestPlane::name);
  return found != tensor.planes.end() ? found->pieces
                                      : tensor.planes.emplace_back(ManifestPlane{plane.name, {}}).pieces;
}

// A file that has the directory's name is renamed to NAME.moved, so that the checkpoint is not lost. A link
// that leads nowhere at the moment is an error: its drive may come back.
void make_directories(const std::string& out_directory, const std::string& directory) {
  std::error_code error;
  if (const fs::file_status status = fs::symlink_status(directory, error);
      fs::exists(status) && !fs::is_directory(status) && !fs::is_symlink(status))
    fs::rename(directory, unused_name(directory + ".moved"), error);
  const bool made = fs::create_directories(directory, error);
  if (error && error != std::errc::no_space_on_device && error != std::errc::io_error)
    throw Error(ExitCode::environment,
                fmt::format("Cannot create {}: {}.", printable(directory), error.message()),
                "Give an --out directory that can be written.");
  if (error) throw checkpoint_error("create", directory, error.value());
  if (made) sync_checkpoint_directory(out_directory);
}

// Opens the file for O_DIRECT where the file system has it.
FileDescriptor create_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  FileDescriptor fd(open(path.c_str(), kFlags | O_DIRECT, kMode));
  if (fd.get() < 0 && errno == EINVAL) fd = FileDescriptor(open(path.c_str(), kFlags, kMode));
  if (fd.get() < 0) throw checkpoint_error("create", path, errno);
  return fd;
}

// Gives the file its final length and reserves the space. Where that is not supported, sets the length only.
void allocate_file(int fd, uint64_t bytes, const std::string& path) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
    result = ftruncate(fd, static_cast<off_t>(bytes));
  if (result != 0) throw checkpoint_error(fmt::format("allocate {} bytes for", bytes), path, errno);
}

// Whether `bytes`, an even number of fp32 values, hold no infinity and no NaN. Only the exponent of these two
// has all bits set, so that adding one to it carries into the place of the sign.
bool all_finite(std::span<const std::byte> bytes) {
  constexpr uint64_t kExponents = 0x7F8000007F800000, kOnes = 0x0080000000800000, kSigns = kExponents + kOnes;
  CHECK(bytes.size() % sizeof(uint64_t) == 0, "values come in pairs");
  uint64_t carries = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t pair;
    std::memcpy(&pair, bytes.data() + i, sizeof pair);
    carries |= (pair & kExponents) + kOnes;
  }
  return (carries & kSigns) == 0;
}

// Writes in pieces of 4096 bytes, the smallest that lanes write. If direct I/O needs larger pieces on this
// file system, a write fails here first, and the file does without O_DIRECT.
void write_header(int fd, const std::string& header, const std::string& path) {
  alignas(kCheckpointAlignment) char piece[kCheckpointAlignment];
  for (uint64_t at = 0; at < header.size();) {
    std::memcpy(piece, header.data() + at, sizeof piece);
    const ssize_t n = pwrite(fd, piece, sizeof piece, static_cast<off_t>(at));
    if (n == static_cast<ssize_t>(sizeof piece)) {
      at += sizeof piece;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    const int flags = fcntl(fd, F_GETFL);
    if (n < 0 && errno == EINVAL && (flags & O_DIRECT) && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0)
      continue;
    throw checkpoint_error("write", path, n < 0 ? errno : ENOSPC);
  }
}

}  // namespace

// Its destructor cleans up, so that a writer's constructor that throws half-way leaves nothing behind.
struct CheckpointWriter::Files {
  std::string directory, temporary, path;
  std::unique_ptr<DirectoryLock> lock;
  bool made = false;      // the temporary directory exists
  bool finished = false;  // commit was tried
  Ranks ranks;
  struct Target {  // where one of this rank's ranges goes
    OwnedRange range;
    std::vector<uint64_t> offsets;   // by plane: in its file, or kNowhere
    std::vector<uint32_t> sections;  // by plane: of its file
  };
  std::vector<Target> targets;
  struct PlaneFile {  // this rank's
    FileDescriptor fd;
    std::string path;
    uint32_t index = 0;  // in the manifest
  };
  std::vector<StoredPlane> planes;
  std::vector<PlaneFile> files;  // by plane
  Manifest manifest;
  bool holds_no_number = false;  // an infinity or NaN was written

  ~Files() {
    if (!made) return;
    for (PlaneFile& file : files) file.fd = FileDescriptor();
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  void list_files(const Model& model, const std::vector<std::vector<OwnedRange>>& by_rank);
  void open_file(size_t plane, const PlaneLayout& layout, const ManifestFile& listed);
  void sync_files();
  void gather_checksums();
  void write_manifest() const;
  void set_aside() const;
  void publish();
};

// Fills the manifest with all ranks' files, without other ranks' checksums, and opens this rank's files.
void CheckpointWriter::Files::list_files(const Model& model,
                                         const std::vector<std::vector<OwnedRange>>& by_rank) {
  // By group: the tensors of its first part, then those of the next part.
  std::vector<std::vector<ManifestTensor>> tensors;
  for (const Group& group : model.groups) {
    tensors.emplace_back();
    for (uint32_t part = 0; part < group.parts(); ++part)
      for (const Parameter& parameter : group.parameters)
        tensors.back().push_back({name_in(group, parameter, part), parameter.shape, {}});
  }
  planes = stored_planes(manifest.state.optimizer, model.precision);
  files.resize(planes.size());
  const auto own = static_cast<size_t>(ranks.rank());
  for (const OwnedRange& range : by_rank[own])
    targets.push_back({range, std::vector<uint64_t>(planes.size()), std::vector<uint32_t>(planes.size())});
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank)
    for (size_t p = 0; p < planes.size(); ++p) {
      const StoredPlane& plane = planes[p];
      const PlaneLayout layout = lay_out_plane(model, plane, by_rank[rank], rank);
      const auto index = static_cast<uint32_t>(manifest.files.size());
      const std::string& header = layout.file.header;
      ManifestFile listed{plane_file_name(plane, rank, by_rank.size()), layout.file.file_bytes, {}};
      const uint64_t checksum = rank == own ? block_checksum(std::as_bytes(std::span(header)), 0) : 0;
      listed.sections.push_back({header.size(), checksum});
      for (size_t r = 0; r < by_rank[rank].size(); ++r) {
        if (rank == own) {
          targets[r].offsets[p] = layout.ranges[r];
          targets[r].sections[p] = static_cast<uint32_t>(listed.sections.size());
        }
        if (layout.ranges[r] == kNowhere) continue;
        const OwnedRange& range = by_rank[rank][r];
        listed.sections.push_back({plane.page_bytes(range.elements), 0});
        if (range.what != Owned::state) continue;
        const Group& group = model.groups[range.group];
        const size_t first = part_on(model.mesh, group, rank) * group.parameters.size();
        for (const TensorPart& part : parts_of(model, range, rank))
          pieces_of(tensors[part.group][first + part.parameter], plane)
              .push_back({index, part.stored_as, part.first, part.count});
      }
      if (layout.file.file_bytes == 0) continue;
      if (rank == own) {
        files[p].index = index;
        open_file(p, layout, listed);
      }
      manifest.files.push_back(std::move(listed));
    }
  for (std::vector<ManifestTensor>& of_group : tensors)
    for (ManifestTensor& tensor : of_group) {
      if (tensor.planes.empty()) continue;  // of the base of adapters
      for (ManifestPlane& plane : tensor.planes) std::ranges::sort(plane.pieces, {}, &ManifestPiece::first);
      manifest.tensors.push_back(std::move(tensor));
    }
}

void CheckpointWriter::Files::open_file(size_t plane, const PlaneLayout& layout, const ManifestFile& listed) {
  PlaneFile& file = files[plane];
  file.path = (fs::path(temporary) / listed.name).string();
  file.fd = create_file(file.path);
  allocate_file(file.fd.get(), layout.file.file_bytes, file.path);
  write_header(file.fd.get(), layout.file.header, file.path);
}

void CheckpointWriter::Files::sync_files() {
  for (PlaneFile& file : files) {
    if (file.fd.get() < 0) continue;
    if (fsync(file.fd.get()) != 0) throw checkpoint_error("sync", file.path, errno);
    if (close(file.fd.release()) != 0) throw checkpoint_error("close", file.path, errno);
  }
}

// Every rank knows the checksums of its own files, and has 0 for the files of others. So the sum over ranks
// has all checksums.
void CheckpointWriter::Files::gather_checksums() {
  std::vector<uint64_t> checksums;
  for (const ManifestFile& file : manifest.files)
    for (const ManifestSection& section : file.sections) checksums.push_back(section.checksum);
  checksums = ranks.sum(std::move(checksums));
  size_t next = 0;
  for (ManifestFile& file : manifest.files)
    for (ManifestSection& section : file.sections) section.checksum = checksums[next++];
}

void CheckpointWriter::Files::write_manifest() const {
  const std::string text = manifest_to_json(manifest);
  OutputFile file((fs::path(temporary) / "manifest.json").string());
  file.write(text.data(), text.size());
  file.commit();  // syncs the directory too
}

// Renames what has this name and is no checkpoint instead of deleting it: somebody may still have a use for
// it.
void CheckpointWriter::Files::set_aside() const {
  std::error_code missing;
  const fs::file_status status = fs::symlink_status(path, missing);
  if (!fs::exists(status) || (fs::is_directory(status) && is_complete({manifest.state.step, path}))) return;
  const std::string aside = unused_name(path + ".damaged");
  if (rename(path.c_str(), aside.c_str()) != 0) throw checkpoint_error("rename", path, errno);
}

// Gives the temporary directory its final name. A checkpoint that has that name already gets the temporary
// name, or is deleted.
void CheckpointWriter::Files::publish() {
  set_aside();
  const auto move = [&] { return rename(temporary.c_str(), path.c_str()) == 0; };
  bool done = move();
  if (!done && (errno == ENOTEMPTY || errno == EEXIST)) {
    done = renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0;
    if (!done && (errno == EINVAL || errno == ENOSYS)) {  // a file system that cannot exchange names
      delete_checkpoint(directory, manifest.state.step);
      done = move();
    }
  }
  if (!done) throw checkpoint_error("rename to", path, errno);
  sync_checkpoint_directory(directory);
}

CheckpointWriter::CheckpointWriter(const std::string& out_directory, const Model& model,
                                   CheckpointState state, const std::vector<std::vector<OwnedRange>>& by_rank,
                                   const Ranks& ranks)
    : files_(std::make_unique<Files>()) {
  CHECK(state.precision == model.precision, "a checkpoint's precision is its model's");
  CHECK(by_rank.size() == static_cast<size_t>(ranks.size()), "ranges of another number of ranks");
  Files& f = *files_;
  const std::string name = checkpoint_name(state.step);
  f.ranks = ranks;
  f.directory = checkpoints_directory(out_directory);
  f.path = (fs::path(f.directory) / name).string();
  f.temporary = (fs::path(f.directory) / fmt::format(".{}.tmp", name)).string();
  if (ranks.is_first()) {
    make_directories(out_directory, f.directory);
    f.lock = std::make_unique<DirectoryLock>(f.directory, "writing a checkpoint");
    remove_leftovers(f.directory);
    if (mkdir(f.temporary.c_str(), 0755) != 0) throw checkpoint_error("create", f.temporary, errno);
    f.made = true;
  }
  ranks.barrier();
  f.manifest.state = std::move(state);
  f.manifest.state.writers = ranks.size();
  f.list_files(model, by_rank);
}

CheckpointWriter::~CheckpointWriter() = default;

FileTarget CheckpointWriter::begin_write(uint32_t group, uint64_t first, const StatePlane& plane,
                                         std::span<const std::byte> bytes) {
  Files& f = *files_;
  const auto stored = std::ranges::find_if(
      f.planes, [&](const StoredPlane& s) { return std::string_view(s.name) == plane.name; });
  CHECK(stored != f.planes.end(), "a plane that the optimizer does not have");
  const auto p = static_cast<size_t>(stored - f.planes.begin());
  const auto after = std::partition_point(f.targets.begin(), f.targets.end(), [&](const Files::Target& t) {
    return std::tie(t.range.what, t.range.group, t.range.first) <= std::tie(stored->what, group, first);
  });
  CHECK(after != f.targets.begin() && std::prev(after)->range.group == group &&
            std::prev(after)->range.what == stored->what,
        "a range of another rank");
  const Files::Target& target = *std::prev(after);
  CHECK(target.offsets[p] != kNowhere, "a plane that the group does not have");
  const Files::PlaneFile& file = f.files[p];
  const uint64_t at = stored->bytes(first - target.range.first);
  ManifestSection& section = f.manifest.files[file.index].sections[target.sections[p]];
  const auto is_cut = [&](uint64_t byte) { return byte % kChecksumBlockBytes == 0 || byte == section.bytes; };
  CHECK(is_cut(at) && is_cut(at + bytes.size()), "a shard is whole blocks");
  section.checksum += block_checksum(bytes, at / kChecksumBlockBytes);
  if (stored->type == DType::f32 && !all_finite(bytes)) f.holds_no_number = true;
  return {file.fd.get(), target.offsets[p] + at, stored->shown_file};
}

void CheckpointWriter::commit() {
  Files& f = *files_;
  CHECK(!f.finished, "a checkpoint is committed once");
  f.finished = true;
  f.sync_files();
  f.gather_checksums();
  if (f.ranks.is_first()) {
    f.write_manifest();
    f.publish();
    std::error_code ignored;
    fs::remove_all(f.temporary, ignored);
    f.made = false;
    f.lock->release();
  }
  f.ranks.barrier();
}

bool CheckpointWriter::all_are_finite() const { return files_->ranks.sum<int>(files_->holds_no_number) == 0; }

const std::string& CheckpointWriter::path() const { return files_->path; }

bool CheckpointWriter::owns_nothing() const { return files_->targets.empty(); }

std::vector<OwnedRange> whole_groups(const Model& model) {
  std::vector<OwnedRange> whole;
  for (uint32_t g = 0; g < model.groups.size(); ++g) whole.push_back({g, 0, model.groups[g].elements});
  return whole;
}

std::vector<std::vector<OwnedRange>> owned_ranges(const Lowering& lowering) {
  std::vector<std::vector<OwnedRange>> by_rank(lowering.mesh.ranks());
  for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
    const GroupBuffers& group = lowering.groups[g];
    if (!group.saved) continue;
    for (uint32_t rank = 0; rank < lowering.mesh.ranks(); ++rank) {
      if (!group.sharing.is_owner(rank)) continue;
      if (!group.sharing.shares_state()) {
        by_rank[rank].push_back({g, 0, group.shards.back()});
        continue;
      }
      for (uint32_t k = 0; k + 1 < group.shards.size(); ++k) {
        const uint64_t elements = group.part_elements(k);
        by_rank[rank].push_back({g, group.shards[k] + group.sharing.part_of(rank) * elements, elements});
      }
    }
  }
  for (const Owned what : {Owned::error, Owned::factors})
    for (uint32_t g = 0; g < lowering.groups.size(); ++g) {
      const GroupBuffers& group = lowering.groups[g];
      if (!group.compression) continue;
      const uint64_t elements = what == Owned::error
                                    ? group.shards.back()
                                    : group.sharing.factor_elements(group.compression->layout.right);
      for (std::vector<OwnedRange>& of_rank : by_rank) of_rank.push_back({g, 0, elements, what});
    }
  return by_rank;
}

uint64_t checkpoint_bytes(const Model& model, std::span<const StoredPlane> planes,
                          const std::vector<std::vector<OwnedRange>>& by_rank) {
  uint64_t bytes = 0;
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank)
    for (const StoredPlane& plane : planes)
      bytes += lay_out_plane(model, plane, by_rank[rank], rank).file.file_bytes;
  return bytes;
}

uint64_t checkpoint_bytes(const Plan& plan, OptimizerKind optimizer) {
  return checkpoint_bytes(plan.model, stored_planes(optimizer, plan.model.precision),
                          owned_ranges(plan.lowering));
}

CheckpointSpace checkpoint_space(const Plan& plan, OptimizerKind optimizer) {
  constexpr uint64_t kOfManifest = 64 << 10, kOfPiece = 150;  // measured: 100 for each plane of a tensor
  uint64_t tensors = 0;
  for (const auto& group : plan.model.groups) tensors += group.parameters.size();
  const uint64_t pieces = tensors * (1 + optimizer_of(optimizer).planes.size()) * plan.lowering.mesh.ranks();
  constexpr uint64_t kOtherFiles = 3;  // the directory, the manifest, its temporary
  const uint64_t planes = stored_planes(optimizer, plan.model.precision).size();
  return {checkpoint_bytes(plan, optimizer) + kOfManifest + kOfPiece * pieces,
          plan.lowering.mesh.ranks() * planes + kOtherFiles};
}

uint64_t largest_checkpoint_file(const Plan& plan, OptimizerKind optimizer) {
  uint64_t largest = 0;
  const std::vector<std::vector<OwnedRange>> by_rank = owned_ranges(plan.lowering);
  const std::vector<StoredPlane> planes = stored_planes(optimizer, plan.model.precision);
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank)
    for (const StoredPlane& plane : planes)
      largest = std::max(largest, lay_out_plane(plan.model, plane, by_rank[rank], rank).file.file_bytes);
  return largest;
}

}  // namespace sluice
