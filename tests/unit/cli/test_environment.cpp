#include <cstdlib>
#include <string>

#include "catch.h"
#include "cli/environment.h"
#include "comm/device_groups.h"

using namespace gptrain;

TEST_CASE("kernels are loaded at the start where ranks exchange between devices, unless the user has chosen") {
  constexpr const char* name = "CUDA_MODULE_LOADING";
  const char* const before = std::getenv(name);
  const std::string kept = before == nullptr ? "" : before;
  const auto value = [] { return std::string(std::getenv(name) == nullptr ? "unset" : std::getenv(name)); };
  unsetenv(name);
  load_kernels_at_start(1);
  CHECK(value() == "unset");
  load_kernels_at_start(2);
  CHECK(value() == (has_device_links() ? "EAGER" : "unset"));
  setenv(name, "LAZY", 1);
  load_kernels_at_start(2);
  CHECK(value() == "LAZY");
  if (before == nullptr) unsetenv(name);
  if (before != nullptr) setenv(name, kept.c_str(), 1);
}
