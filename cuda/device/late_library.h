// Libraries of CUDA that are opened when one of their functions is first called. Commands that use no device thus save
// at least a twentieth of a second, or some megabytes.
#pragma once

#include <dlfcn.h>
#include <string>
#include <utility>

#include "base/error.h"

namespace gptrain::inline cuda {

class LateLibrary {
 public:
  // Opens a file of the loader's path; `find` throws if that fails. `name`: the library's name in messages.
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

// Opens nvrtc. cuDNN, which searches other paths for it, then uses the open one. No effect if it is not found.
void open_nvrtc();

}  // namespace gptrain::cuda

// Defines a function that a library's header declares: it calls the function of the opened library.
#define GPTRAIN_FORWARD(library, Result, name, parameters, arguments)      \
  Result name parameters {                                                 \
    static const auto function = library().find<decltype(&(name))>(#name); \
    return function arguments;                                             \
  }
