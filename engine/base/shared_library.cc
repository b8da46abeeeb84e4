#include "engine/base/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace sluice {

// RTLD_NOW: a missing symbol shows here and not in a step. RTLD_LOCAL: symbols are not offered to other
// libraries.
SharedLibrary::SharedLibrary(const std::string& name)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) failure_ = dlerror();
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr && !kept_) (void)dlclose(handle_);  // nothing of it is in use
}

std::string SharedLibrary::file() const {
  link_map* map = nullptr;
  const bool known = handle_ != nullptr && dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0;
  return known ? map->l_name : name_;
}

void* SharedLibrary::address_of(const char* symbol) {
  void* const address = handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
  if (address == nullptr && failure_.empty()) failure_ = name_ + " has no " + symbol;
  return address;
}

}  // namespace sluice
