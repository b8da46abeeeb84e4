#include "engine/run/train/way_on.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "engine/run/checkpoint/checkpoint.h"

namespace sluice {

namespace {

struct Found {
  bool any = true;
  std::string newest, before;  // paths of complete checkpoints; "": not known, or there is none
};

Found found_in(const OutDirectory& out) {
  Found found;
  try {
    const std::optional<std::string> where = out.where();
    const std::optional<std::string> newest = where ? newest_checkpoint(*where) : std::nullopt;
    found.any = newest.has_value();
    if (!newest) return found;
    found.newest = *newest;
    const std::filesystem::path path(*newest);
    if (const auto step = step_of(path.filename().string()))
      found.before = checkpoint_before(path.parent_path().string(), *step).value_or("");
  } catch (const Error&) {
  }
  return found;
}

// "--out OUT " if the run directory is elsewhere than the command says, else "".
std::string new_out(const OutDirectory& out) {
  const std::optional<std::string> place = out.elsewhere();
  return place ? "--out " + printable(*place) + " " : "";
}

// A branch that has no checkpoint yet starts from the checkpoint at which it branched off.
std::string resume_words(const Found& found, const RunOptions& run, const OutDirectory& out) {
  const bool leaves = !found.any && !run.resume.empty();
  return new_out(out) + "--resume " + (leaves ? printable(run.resume) : "auto");
}

}  // namespace

std::string way_on(const RunOptions& run, const OutDirectory* out) {
  if (!out) return "start again";
  const Found found = found_in(*out);
  const std::string resume = resume_words(found, run, *out);
  return found.any ? "go on with " + resume
                   : "start again with " + resume + ", since there is no checkpoint yet";
}

std::string way_on_with(const std::string& change, const RunOptions& run, const OutDirectory* out) {
  if (!out) return "Start again with " + change + ".";
  const Found found = found_in(*out);
  const std::string repeat =
      fmt::format("repeat the command with {} and {}.", resume_words(found, run, *out), change);
  if (!found.any)
    return "There is no checkpoint yet: " + repeat +
           " If that ends in the same way, look at the weights that the run begins with.";
  return fmt::format(
      "To go on{}, {} If that soon ends in the same way, the weights were spoiled before: then {}start anew "
      "in "
      "another --out.",
      found.newest.empty() ? "" : " from " + printable(found.newest), repeat,
      found.before.empty() ? "" : "go back with --resume " + printable(found.before) + ", or ");
}

std::string way_on_from_bad_numbers(int64_t step, bool has_experts, const RunOptions& run,
                                    const OutDirectory* out) {
  if (step > 1) return way_on_with("a smaller --lr", run, out);
  return fmt::format(
      "No update was made before, so it is not --lr: look at the weights that the run begins with{} and at "
      "--precision.",
      has_experts ? ", at --router-loss and --router-z-loss if they are given," : "");
}

std::string saved_words(int64_t step, int64_t steps, const OutDirectory& out) {
  const std::optional<std::string> place = out.elsewhere();
  const std::string there = place ? " in " + printable(*place) : "";
  if (step == steps)
    return fmt::format("All {} steps are done and saved{}; then sluice eval gives the loss.", step, there);
  return fmt::format("Step {} is saved{}: then go on with {}--resume auto.", step, there, new_out(out));
}

}  // namespace sluice
