#include "gpu/cuda/algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/strict_json.h"

namespace sluice::cuda {

namespace {

using Json = nlohmann::json;  // sorts keys

[[noreturn]] void fail(const std::string& what) {
  throw Error(ExitCode::malformed_file,
              "The algorithms of matrix products cannot be read: " + printable(what) + ".",
              kTimeAlgorithmsAnew);
}

const Json& value(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) fail(fmt::format("there is no `{}`", key));
  return object[key];
}

std::string text_of(const Json& object, const char* key) {
  if (!value(object, key).is_string()) fail(fmt::format("`{}` is not a text", key));
  return object[key].get<std::string>();
}

Algorithm parse_algorithm(const std::string& product, const Json& json) {
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  std::istringstream words(text);
  Algorithm algorithm{};
  for (uint32_t& attribute : algorithm) {
    std::string word;
    words >> word;
    const size_t begin = std::min(word.find('=') + 1, word.size());
    std::from_chars(word.data() + begin, word.data() + word.size(), attribute);
  }
  if (algorithm_text(algorithm) != text) fail(fmt::format("`{}` of {} is not an algorithm", text, product));
  return algorithm;
}

std::string version_text(uint64_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string place_text(const TimingPlace& place) {
  return fmt::format("{} (compute capability {}) with cuBLASLt {}", printable(place.gpu),
                     printable(place.compute_capability), version_text(place.cublaslt));
}

}  // namespace

std::string product_text(const Product& p) {
  return fmt::format("{} x {} x {} {}{} a{}={} b{}={} c={}{}", p.m, p.n, p.k, dtype_name(p.precision),
                     p.result == p.precision ? "" : fmt::format("-{}", dtype_name(p.result)),
                     p.transpose_a ? "'" : "", p.stride_a, p.transpose_b ? "'" : "", p.stride_b, p.stride_c,
                     p.bias ? " bias" : "");
}

std::string algorithm_text(const Algorithm& algorithm) {
  std::string text;
  for (size_t i = 0; i < algorithm.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "" : " ", kAlgorithmAttributes[i], algorithm[i]);
  return text;
}

std::string algorithms_text(const ChosenAlgorithms& chosen) {
  Json products = Json::object();
  for (const auto& [product, algorithm] : chosen.products) products[product] = algorithm_text(algorithm);
  const Json json{{"gpu", chosen.place.gpu},
                  {"compute_capability", chosen.place.compute_capability},
                  {"cublaslt", chosen.place.cublaslt},
                  {"products", products}};
  return json.dump();
}

ChosenAlgorithms parse_algorithms(const std::string& text) {
  Json json;
  try {
    json = parse_strict_json(text);
  } catch (const std::invalid_argument& error) {
    fail(error.what());
  }
  if (!value(json, "cublaslt").is_number_unsigned()) fail("`cublaslt` is not a version");
  ChosenAlgorithms chosen{
      {text_of(json, "gpu"), text_of(json, "compute_capability"), json["cublaslt"].get<uint64_t>()}, {}};
  if (!value(json, "products").is_object()) fail("`products` is not an object");
  for (const auto& [product, algorithm] : json["products"].items())
    chosen.products[product] = parse_algorithm(product, algorithm);
  return chosen;
}

TimingPlace timing_place(const CudaStatus& gpu, uint64_t cublaslt) {
  return {printable(gpu.name), fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor), cublaslt};
}

void check_place(const TimingPlace& timed, const TimingPlace& here) {
  if (timed == here) return;
  throw Error(ExitCode::environment,
              fmt::format("The algorithms of matrix products were timed on {}, and this is {}.",
                          place_text(timed), place_text(here)),
              kTimeAlgorithmsAnew);
}

}  // namespace sluice::cuda
