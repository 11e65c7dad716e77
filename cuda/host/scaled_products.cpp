// FP8 products on the host harness: the CPU backend's.
#include "scaled_products.h"

#include "host/device_memory.h"
#include "host/recording.h"
#include "ops/cpu/cpu_ops.h"

namespace gptrain {
namespace {

class HostScaledProducts final : public ScaledProducts {
 public:
  void run(const ScaledProduct& op, std::byte*, int64_t) override {
    simt::start([op] {
      const simt::DeviceAccess access;
      cpu_scaled_product(op, 1);
    });
  }
};

}  // namespace

std::unique_ptr<ScaledProducts> make_scaled_products(Stream) { return std::make_unique<HostScaledProducts>(); }

}  // namespace gptrain
