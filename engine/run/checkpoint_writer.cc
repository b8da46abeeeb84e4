#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/error.h"
#include "engine/run/block_checksum.h"
#include "engine/run/checkpoint.h"
#include "engine/run/checkpoint_directory.h"

namespace sluice {

namespace {

namespace fs = std::filesystem;

constexpr std::array<Plane, kPlanes> kAllPlanes = {Plane::master, Plane::first_moment, Plane::second_moment,
                                                   Plane::frozen_weights};
constexpr uint64_t kNowhere = UINT64_MAX;

// Literals, by plane: lanes keep them in errors that may outlive the writer.
constexpr std::array<const char*, kPlanes> kShownNames = {
    "the checkpoint's master.safetensors", "the checkpoint's exp_avg.safetensors",
    "the checkpoint's exp_avg_sq.safetensors", "the checkpoint's frozen.safetensors"};

std::string file_name(Plane plane) { return std::string(plane_name(plane)) + ".safetensors"; }

bool stores(Plane plane, const Group& group) { return group.trainable != (plane == Plane::frozen_weights); }

struct PlaneLayout {
  SafetensorsLayout file;
  std::vector<uint64_t> groups;  // file offset of each group's first element, or kNowhere
};

// The plane's file: its groups' flat buffers with all padding declared. No groups: an empty header.
PlaneLayout lay_out_plane(const Model& model, Plane plane) {
  const DType dtype = plane == Plane::frozen_weights ? model.precision : DType::f32;
  const uint64_t width = dtype_bytes(dtype);
  PlaneLayout layout;
  layout.groups.assign(model.groups.size(), kNowhere);
  std::vector<TensorSpec> specs;
  uint64_t paddings = 0;
  const auto pad = [&](uint64_t elements) {
    if (elements == 0) return;
    specs.push_back(
        {fmt::format("padding.{}", paddings++), DType::u8, {static_cast<int64_t>(elements * width)}});
  };
  uint64_t begin = 0;  // bytes, from the start of the data
  for (size_t g = 0; g < model.groups.size(); ++g) {
    const Group& group = model.groups[g];
    if (!stores(plane, group)) continue;
    CHECK(begin % kCheckpointAlignment == 0, "a group's flat buffer is no multiple of 4096 bytes");
    layout.groups[g] = begin;
    uint64_t end = 0;
    for (const Parameter& parameter : group.parameters) {
      pad(parameter.offset - end);
      specs.push_back({parameter.name, dtype, parameter.shape});
      end = parameter.offset + static_cast<uint64_t>(element_count(parameter.shape));
    }
    pad(group.elements - end);
    begin += group.elements * width;
  }
  if (specs.empty()) return layout;
  layout.file = lay_out_safetensors(specs, {}, kCheckpointAlignment);
  for (uint64_t& offset : layout.groups)
    if (offset != kNowhere) offset += layout.file.header.size();
  return layout;
}

// What a manifest says of one writer's files: every stored tensor is one piece.
std::vector<ManifestTensor> list_tensors(const Model& model,
                                         const std::array<uint32_t, kPlanes>& file_index) {
  std::vector<ManifestTensor> tensors;
  for (const Group& group : model.groups)
    for (const Parameter& parameter : group.parameters) {
      ManifestTensor tensor{parameter.name, parameter.shape, {}};
      const auto elements = static_cast<uint64_t>(element_count(parameter.shape));
      for (size_t p = 0; p < kPlanes; ++p)
        if (stores(kAllPlanes[p], group)) tensor.planes[p] = {{file_index[p], parameter.name, 0, elements}};
      tensors.push_back(std::move(tensor));
    }
  return tensors;
}

void make_directories(const std::string& out_directory, const std::string& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error && error != std::errc::no_space_on_device && error != std::errc::io_error)
    throw Error(ExitCode::environment,
                fmt::format("Cannot create {}: {}.", printable(directory), error.message()),
                "Give an --out directory that can be written.");
  if (error) throw checkpoint_error("create", directory, error.value());
  if (made) sync_checkpoint_directory(out_directory);
}

// O_DIRECT where the file system has it.
FileDescriptor create_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  FileDescriptor fd(open(path.c_str(), kFlags | O_DIRECT, kMode));
  if (fd.get() < 0 && errno == EINVAL) fd = FileDescriptor(open(path.c_str(), kFlags, kMode));
  if (fd.get() < 0) throw checkpoint_error("create", path, errno);
  return fd;
}

// Gives the file its final length, with space for it. Where space cannot be reserved, only the length.
void allocate_file(int fd, uint64_t bytes, const std::string& path) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
    result = ftruncate(fd, static_cast<off_t>(bytes));
  if (result != 0) throw checkpoint_error(fmt::format("allocate {} bytes for", bytes), path, errno);
}

// In pieces of 4096 bytes, the finest that lanes write: if direct I/O is too coarse here, it shows now, and
// the file goes on without.
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

// Cleans up by itself, so that a constructor that throws half-way leaves nothing behind.
struct CheckpointWriter::Files {
  std::string directory, temporary, path;
  std::unique_ptr<DirectoryLock> lock;
  bool made = false;      // the temporary is there
  bool finished = false;  // commit was tried
  std::array<FileDescriptor, kPlanes> fds;
  std::array<std::vector<uint64_t>, kPlanes> offsets;   // of groups, by plane
  std::array<std::vector<uint32_t>, kPlanes> sections;  // likewise, in the plane's file
  std::array<uint32_t, kPlanes> file_index{};           // in the manifest
  std::array<uint64_t, kPlanes> widths{};
  Manifest manifest;

  ~Files() {
    if (!made) return;
    for (FileDescriptor& fd : fds) fd = FileDescriptor();
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  }
  void open_plane(const Model& model, Plane plane);
  void sync_files();
  void write_manifest() const;
  void set_aside() const;
  void publish();
};

void CheckpointWriter::Files::open_plane(const Model& model, Plane plane) {
  const auto p = static_cast<size_t>(plane);
  PlaneLayout layout = lay_out_plane(model, plane);
  if (layout.file.file_bytes == 0) return;
  const std::string name = file_name(plane), file = (fs::path(temporary) / name).string();
  fds[p] = create_file(file);
  allocate_file(fds[p].get(), layout.file.file_bytes, file);
  write_header(fds[p].get(), layout.file.header, file);
  offsets[p] = std::move(layout.groups);
  widths[p] = plane == Plane::frozen_weights ? dtype_bytes(model.precision) : dtype_bytes(DType::f32);
  file_index[p] = static_cast<uint32_t>(manifest.files.size());
  const std::string& header = layout.file.header;
  ManifestFile listed{name, layout.file.file_bytes, {}};
  listed.sections.push_back({header.size(), block_checksum(std::as_bytes(std::span(header)), 0)});
  for (size_t g = 0; g < model.groups.size(); ++g) {
    sections[p].push_back(static_cast<uint32_t>(listed.sections.size()));
    if (offsets[p][g] != kNowhere) listed.sections.push_back({model.groups[g].elements * widths[p], 0});
  }
  manifest.files.push_back(std::move(listed));
}

void CheckpointWriter::Files::sync_files() {
  for (const Plane plane : kAllPlanes) {
    FileDescriptor& fd = fds[static_cast<size_t>(plane)];
    if (fd.get() < 0) continue;
    const std::string file = (fs::path(temporary) / file_name(plane)).string();
    if (fsync(fd.get()) != 0) throw checkpoint_error("sync", file, errno);
    if (close(fd.release()) != 0) throw checkpoint_error("close", file, errno);
  }
}

void CheckpointWriter::Files::write_manifest() const {
  const std::string text = manifest_to_json(manifest);
  OutputFile file((fs::path(temporary) / "manifest.json").string());
  file.write(text.data(), text.size());
  file.commit();  // syncs the directory too
}

// What cannot be read as a checkpoint may still be of use to somebody: it makes way, and stays.
void CheckpointWriter::Files::set_aside() const {
  std::error_code missing;
  if (!fs::is_directory(path, missing) || is_complete({manifest.state.step, path})) return;
  std::string aside = path + ".damaged";
  for (int i = 2; fs::exists(aside, missing); ++i) aside = fmt::format("{}.damaged.{}", path, i);
  if (rename(path.c_str(), aside.c_str()) != 0) throw checkpoint_error("rename", path, errno);
}

// The temporary takes its name; one that had it before ends up under the temporary's.
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
                                   CheckpointState state)
    : files_(std::make_unique<Files>()) {
  CHECK(state.precision == model.precision, "a checkpoint's precision is its model's");
  Files& f = *files_;
  const std::string name = checkpoint_name(state.step);
  f.directory = checkpoints_directory(out_directory);
  f.path = (fs::path(f.directory) / name).string();
  f.temporary = (fs::path(f.directory) / fmt::format(".{}.tmp", name)).string();
  make_directories(out_directory, f.directory);
  f.lock = std::make_unique<DirectoryLock>(f.directory, "writing a checkpoint");
  remove_leftovers(f.directory);
  if (mkdir(f.temporary.c_str(), 0755) != 0) throw checkpoint_error("create", f.temporary, errno);
  f.made = true;
  f.manifest.state = std::move(state);
  for (const Plane plane : kAllPlanes) f.open_plane(model, plane);
  f.manifest.tensors = list_tensors(model, f.file_index);
}

CheckpointWriter::~CheckpointWriter() = default;

FileTarget CheckpointWriter::begin_write(uint32_t group, uint64_t first, Plane plane,
                                         std::span<const std::byte> bytes) {
  const auto p = static_cast<size_t>(plane);
  Files& f = *files_;
  const std::vector<uint64_t>& offsets = f.offsets[p];
  CHECK(group < offsets.size() && offsets[group] != kNowhere, "a plane that the group does not have");
  const uint64_t at = first * f.widths[p];
  ManifestSection& section = f.manifest.files[f.file_index[p]].sections[f.sections[p][group]];
  const auto is_cut = [&](uint64_t byte) { return byte % kChecksumBlockBytes == 0 || byte == section.bytes; };
  CHECK(is_cut(at) && is_cut(at + bytes.size()), "a shard is whole blocks");
  section.checksum += block_checksum(bytes, at / kChecksumBlockBytes);
  return {f.fds[p].get(), offsets[group] + at, kShownNames[p]};
}

void CheckpointWriter::commit() {
  Files& f = *files_;
  CHECK(!f.finished, "a checkpoint is committed once");
  f.finished = true;
  f.sync_files();
  f.write_manifest();
  f.publish();
  std::error_code ignored;
  fs::remove_all(f.temporary, ignored);
  f.made = false;
  f.lock->release();
}

const std::string& CheckpointWriter::path() const { return files_->path; }

uint64_t checkpoint_bytes(const Model& model) {
  uint64_t bytes = 0;
  for (const Plane plane : kAllPlanes) bytes += lay_out_plane(model, plane).file.file_bytes;
  return bytes;
}

}  // namespace sluice
