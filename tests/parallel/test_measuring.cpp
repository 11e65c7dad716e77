// Memory that the measurement of the machine borrows before a run.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "catch.h"
#include "step/machine_limits.h"
#include "wrappers.h"

namespace test_measuring {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Counts the allocated bytes.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    now += bytes;
    most = std::max(most, now);
    return std::make_unique<Counted>(inner_.allocate(bytes), now);
  }

  int64_t now = 0, most = 0;

 private:
  class Counted final : public DeviceMemory {
   public:
    Counted(std::unique_ptr<DeviceMemory> inner, int64_t& now)
        : DeviceMemory(inner->data(), inner->bytes()), inner_(std::move(inner)), now_(now) {}
    ~Counted() override { now_ -= bytes_; }

   private:
    std::unique_ptr<DeviceMemory> inner_;
    int64_t& now_;
  };
};

constexpr double slow_seconds = 0.05;

// Makes products with plain weights slow.
class SlowBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using ForwardingBackend::run;

  void run(const LinearForward& op) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(slow_seconds));
    inner_.run(op);
    flops = static_cast<double>(2 * op.x.rows * op.x.cols * op.y.cols);
  }

  double flops = 0;
};

}  // namespace

TEST_CASE("measuring the machine borrows no more memory than is said, and gives it back") {
  const auto cpu = make_cpu_backend(2);
  CountingBackend backend(*cpu);
  CHECK(measure_matrix_rate(backend, DType::f32) > 0);
  CHECK(measure_copy_rate(backend) > 0);
  CHECK(backend.most > 0);
  CHECK(backend.most <= measuring_bytes);
  CHECK(backend.now == 0);
}

TEST_CASE("the rate of products is that of packed weights where plain ones are slow") {
  const auto cpu = make_cpu_backend(2);
  SlowBackend backend(*cpu);
  CHECK(measure_matrix_rate(backend, DType::f32) > 2 * backend.flops / slow_seconds);
}

}  // namespace test_measuring
