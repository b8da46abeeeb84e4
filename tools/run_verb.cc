#include "tools/command/run_verb.h"

#include <utility>

namespace sluice {

ExitCode run_verb(Verb verb, Options options, std::FILE* out) {
  switch (verb) {
    case Verb::train:
      return run_train(std::move(options), out);
    case Verb::prepare:
      return run_prepare(std::move(options), out);
    case Verb::plan:
      return run_plan(std::move(options), out);
    case Verb::eval:
      return run_eval(std::move(options), out);
    case Verb::export_run:
      return run_export(std::move(options), out);
    case Verb::doctor:
      return run_doctor(std::move(options), out);
    case Verb::profile:
      return run_profile(std::move(options), out);
    case Verb::bench:
      return run_bench(std::move(options), out);
    case Verb::completion:
      return run_completion(std::move(options), out);
    case Verb::report:
      return run_report(std::move(options), out);
    case Verb::generate:
      return run_generate(std::move(options), out);
  }
  check_failed("a verb", __FILE__, __LINE__, "");
}

}  // namespace sluice
