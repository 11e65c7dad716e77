// Targets of the `plan` backend by the names of devices.
#pragma once

#include <string_view>

#include "machine/profiles.h"
#include "ops/target.h"

namespace gptrain::testing {

// Returns target_of the named device in its usual cluster. THROWS as find_device does.
inline Target find_target(std::string_view name) {
  const DeviceProfile device = find_device(name);
  return target_of(device, cluster_of(device));
}

}  // namespace gptrain::testing
