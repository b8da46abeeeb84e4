// What the tests of file formats share: a directory of their own, files made from bytes, and a check of
// errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "tests/support/test_directory.h"

namespace sluice {

class FormatTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (directory / name).string(); }

  std::string write_file(const std::string& name, const std::string& bytes) const {
    std::filesystem::remove(path(name));  // rewriting in place would make ext4 flush every time
    std::ofstream(path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }
  std::string read_file(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
  }

  const TestDirectory temporary;
  const std::filesystem::path directory = temporary.path();
};

// `action` must throw an Error with this code, whose sentence contains every one of `parts` and whose remedy
// is not empty.
inline void expect_error(ExitCode code, std::initializer_list<std::string> parts,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error where one was expected: " << *parts.begin();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace sluice
