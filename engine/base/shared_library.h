// A shared library that is opened at run time, by the name that the loader searches for.
//
// Nothing throws. failure() tells the first library or symbol that was not found, so that a caller fills a
// whole table of functions and checks once. The library is closed with this object unless keep_open() was
// called, after which functions that were found may be used until the process ends.
#pragma once

#include <string>

namespace sluice {

class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  bool is_open() const { return handle_ != nullptr; }
  std::string file() const;  // the path at which the loader found it
  template <typename F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(address_of(symbol));
  }
  // A clause: what the loader says about the library, or "NAME has no SYMBOL"; empty if all was found.
  const std::string& failure() const { return failure_; }
  void keep_open() { kept_ = true; }

 private:
  void* address_of(const char* symbol);

  const std::string name_;
  void* const handle_;
  std::string failure_;
  bool kept_ = false;
};

}  // namespace sluice
