#include "tests/support/last_metrics.h"

#include <nlohmann/json.hpp>

namespace sluice {

nlohmann::json last_metrics(const std::string& file) {
  return nlohmann::json::parse(last_metrics_line(file));
}

}  // namespace sluice
