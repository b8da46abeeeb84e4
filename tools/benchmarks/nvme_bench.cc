// A file lane with checksums, against fio with the same request size and depth, on the same drive.
//
//   nvme_bench [--dir DIR] [--bytes SIZE] [--rounds N] [--io NAME, as sluice bench takes it]
//
// Lane and fio write their files once before anything is timed, since a first write into fresh space is
// slower. Then they alternate, so that disturbances of the machine hit both, and medians are compared. Needs
// twice SIZE of free space. The lane's memory lies in huge pages, as in training; fio has none unless the
// system reserves some. On a virtual drive, huge pages alone make a factor of up to two. So a ratio above one
// does not mean that fio is slow.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/run/options/options.h"
#include "engine/run/options/size.h"
#include "tools/bench/median.h"
#include "tools/bench/nvme_lane.h"

namespace sluice {
namespace {

constexpr const char* kFioFile = "sluice-nvme-bench.tmp";

struct Arguments {
  std::string directory = ".";
  uint64_t bytes = 1ull << 30;
  int rounds = 5;
  IoChoice io = nullptr;
};

IoChoice io_choice(const std::string& name) {
  Options options;
  set_option(options, *find_option("io"), {name});
  return options.memory.io;
}

Arguments parse(int argc, char** argv) {
  const auto usage = [](const std::string& what) {
    return Error(ExitCode::usage, what,
                 "Usage: nvme_bench [--dir DIR] [--bytes SIZE] [--rounds N] [--io NAME]");
  };
  Arguments options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw usage(name + " needs a value, or is no option.");
    const std::string value = argv[i + 1];
    if (name == "--dir")
      options.directory = value;
    else if (name == "--bytes" && value != "auto")
      options.bytes = parse_size(value, "bytes").bytes;
    else if (name == "--rounds")
      options.rounds = std::max(1, std::atoi(value.c_str()));
    else if (name == "--io")
      options.io = io_choice(value);
    else
      throw usage("Unknown option " + name + " " + value + ".");
  }
  options.bytes = std::max<uint64_t>(1, options.bytes / kTransferBytes) * kTransferBytes;
  return options;
}

// fio over a named file, which is removed at the end.
class FioRun {
 public:
  explicit FioRun(const Arguments& options) : options_(options) {
    if (output_of("fio --version").empty())
      throw Error(ExitCode::environment, "fio is not installed.",
                  "Add it with: apt-get install --no-install-recommends fio");
  }
  ~FioRun() { unlink((options_.directory + "/" + kFioFile).c_str()); }

  // GB/s of one pass over the file.
  double pass(IoDirection direction) {
    const std::string name = direction == IoDirection::read ? "read" : "write";
    const std::string command = fmt::format(
        "cd {} && fio --name=peer --filename={} --size={} --bs={} --iodepth={} --ioengine=io_uring "
        "--direct=1 "
        "--thread --rw={} --output-format=json{}",
        quoted(options_.directory), kFioFile, options_.bytes, kRequestBytes, requests_in_flight(1), name,
        extra_);
    const auto report = nlohmann::json::parse(output_of(command), nullptr, false);
    if (!report.is_discarded()) return report.at("jobs").at(0).at(name).at("bw_bytes").get<double>() / 1e9;
    if (extra_.empty()) throw Error(ExitCode::environment, "fio failed.", "Run this to see why: " + command);
    extra_.clear();
    return pass(direction);
  }
  const std::string& extra() const { return extra_; }

 private:
  static std::string quoted(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  }
  // The output of a command, or nothing if it fails.
  static std::string output_of(const std::string& command) {
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (!pipe) return "";
    std::string out;
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) out.append(part, n);
    return pclose(pipe) == 0 ? out : "";
  }

  const Arguments& options_;
  std::string extra_ =
      " --fixedbufs --registerfiles";  // fio's fastest options; left out where memory cannot be locked
};

void compare(const Arguments& options) {
  FioRun fio(options);
  NvmeLane lane(options.directory, options.bytes, options.io);
  fmt::print("{} of {} in {}-byte requests, {} in flight\nlane: {}\n", format_size(options.bytes),
             options.directory, kRequestBytes, requests_in_flight(1), lane.description());
  fio.pass(IoDirection::write);
  lane.pass(IoDirection::write);
  fmt::print("fio: io_uring{}\n", fio.extra());
  for (const IoDirection direction : {IoDirection::write, IoDirection::read}) {
    const char* name = direction == IoDirection::read ? "read" : "write";
    std::vector<double> ours, theirs;
    for (int round = 0; round < options.rounds; ++round) {
      theirs.push_back(fio.pass(direction));
      ours.push_back(lane.pass(direction) / 1e9);
      fmt::print("  {:5} round {}: lane {:.2f} GB/s, fio {:.2f} GB/s\n", name, round + 1, ours.back(),
                 theirs.back());
    }
    const double ratio = median(ours) / median(theirs);
    fmt::print("{}: lane {:.2f} GB/s, fio {:.2f} GB/s (medians), ratio {:.2f} (bar: 0.90) {}\n", name,
               median(ours), median(theirs), ratio, ratio >= 0.9 ? "ok" : "short");
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    sluice::compare(sluice::parse(argc, argv));
    return 0;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "nvme_bench: {}\n{}\n", e.what(), e.remedy());
    return static_cast<int>(e.code());
  }
}
