// Libraries of CUDA that are opened at the first call of one of their functions: loading takes at least a twentieth of
// a second, or some megabytes, which commands that use no device save.
#pragma once

#include <dlfcn.h>
#include <string>
#include <utility>

#include "base/error.h"

namespace gptrain::inline cuda {

class LateLibrary {
 public:
  // Opens a file of the loader's path. `name`: for messages.
  LateLibrary(const char* name, std::string file)
      : name_(name), file_(std::move(file)), handle_(dlopen(file_.c_str(), RTLD_LAZY | RTLD_LOCAL)) {}

  // THROWS Error(device) if the file or its function is not there.
  template <typename Function>
  Function find(const char* function) const {
    void* const found = handle_ != nullptr ? dlsym(handle_, function) : nullptr;
    if (found == nullptr) {
      throw Error(ExitCode::device,
                  "{}, which this build needs, cannot be used: {} of {} is not found; put the library's folder on the "
                  "loader's path (LD_LIBRARY_PATH)",
                  name_, function, file_);
    }
    return reinterpret_cast<Function>(found);
  }

 private:
  const char* name_;
  std::string file_;
  void* handle_;
};

// Opens nvrtc, which cuDNN opens by itself, but on other paths. No effect if it is not found.
void open_nvrtc();

}  // namespace gptrain::cuda

// Defines a function of a library as its header declares it.
#define GPTRAIN_FORWARD(library, Result, name, parameters, arguments)      \
  Result name parameters {                                                 \
    static const auto function = library().find<decltype(&(name))>(#name); \
    return function arguments;                                             \
  }
