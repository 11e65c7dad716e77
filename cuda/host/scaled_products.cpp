// FP8 products on the host harness: the CPU backend's.
#include "scaled_products.h"

#include "host/device_memory.h"
#include "host/recording.h"
#include "ops/cpu/cpu_ops.h"

namespace gptrain {
namespace {

class HostScaledProducts final : public ScaledProducts {
 public:
  explicit HostScaledProducts(Stream stream) : stream_(stream) {}

  void run(const ScaledProduct& op, std::byte*, int64_t) override {
    simt::start(stream_, [op] {
      const simt::DeviceAccess access;
      cpu_scaled_product(op, 1);
    });
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<ScaledProducts> make_scaled_products(Stream stream) {
  return std::make_unique<HostScaledProducts>(stream);
}

}  // namespace gptrain
