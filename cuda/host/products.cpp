// Products on the host harness: the CPU backend's. The bias' gradient is summed by the device's own kernel.
#include "products.h"

#include <utility>

#include "algorithm_record.h"
#include "host/device_memory.h"
#include "host/recording.h"
#include "kernels/column_sums.h"
#include "ops/cpu/linear.h"

namespace gptrain {
namespace {

class HostProducts final : public Products {
 public:
  explicit HostProducts(Stream stream) : stream_(stream) {}

  void run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) override {
    start(op, scratch, scratch_bytes);
  }
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) override {
    start(op, scratch, scratch_bytes);
  }
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) override {
    LinearBackwardWeight product = op;
    product.d_bias = {};
    start(product, scratch, scratch_bytes);
    if (op.d_bias.given()) cuda_run(ColumnSums{op.dy, op.d_bias, op.accumulate}, stream_, scratch);
  }

  void choose(const LinearForward&, std::byte*, int64_t) override {}
  void choose(const LinearBackwardInput&, std::byte*, int64_t) override {}
  void choose(const LinearBackwardWeight&, std::byte*, int64_t) override {}
  std::string algorithms() const override { return record_.text(); }
  void use_algorithms(const std::string& record) override {
    const std::string warning = record_.take(record);
    if (!warning.empty()) warnings_ += warning + '\n';
  }
  std::string take_warnings() override { return std::exchange(warnings_, ""); }

 private:
  template <typename Op>
  void start(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
    simt::start(stream_, [this, op, scratch, scratch_bytes] {
      const simt::DeviceAccess access;
      linear_.run(op, scratch, scratch_bytes);
    });
  }

  Stream stream_;
  CpuLinear linear_{1, true};                              // one thread, as the harness has
  AlgorithmRecord record_{"host harness", "CPU backend"};  // which has no choice
  std::string warnings_;
};

}  // namespace

std::unique_ptr<Products> make_products(Stream stream) { return std::make_unique<HostProducts>(stream); }

}  // namespace gptrain
