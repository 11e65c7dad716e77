// Products on the host harness, by the CPU backend; f16 operands are computed in f32. Epilogues with more than a bias
// are left to the device's own kernels.
#include "products.h"

#include <utility>
#include <vector>

#include "algorithm_record.h"
#include "base/dtype.h"
#include "host/device_memory.h"
#include "host/recording.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/linear.h"
#include "unfused.h"

namespace gptrain::inline cuda {
namespace {

// An operand in f32 on the host. An f16 operand is rounded and copied back when the product is done.
class Widened {
 public:
  explicit Widened(const Matrix& matrix) : narrow_(matrix), wide_(matrix) {
    if (narrow_.dtype != DType::f16) return;
    values_.reserve(static_cast<size_t>(narrow_.count()));
    for (int64_t row = 0; row < narrow_.rows; ++row)
      for (int64_t col = 0; col < narrow_.cols; ++col) values_.push_back(to_float(*at(row, col)));
    wide_ = Matrix(values_.data(), DType::f32, narrow_.rows, narrow_.cols);
  }

  const Matrix& matrix() const { return wide_; }
  void put_back() const {
    if (narrow_.dtype != DType::f16) return;
    size_t next = 0;
    for (int64_t row = 0; row < narrow_.rows; ++row)
      for (int64_t col = 0; col < narrow_.cols; ++col) *at(row, col) = to_f16(values_[next++]);
  }

 private:
  f16* at(int64_t row, int64_t col) const { return narrow_.as<f16>() + row * narrow_.stride + col; }

  Matrix narrow_, wide_;
  std::vector<float> values_;
};

class HostProducts final : public Products {
 public:
  explicit HostProducts(Stream stream) : stream_(stream) {}

  void run(const LinearForward& op, std::byte* scratch, int64_t bytes) override { start(op, scratch, bytes); }
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t bytes) override { start(op, scratch, bytes); }
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t bytes) override { start(op, scratch, bytes); }
  void run(const ScaledProduct& op, std::byte*, int64_t) override {
    simt::start(stream_, [op] {
      const simt::DeviceAccess access;
      cpu_run(op, CpuContext{.num_threads = 1});
    });
  }

  void choose(const LinearForward&, std::byte*, int64_t) override {}
  void choose(const LinearBackwardInput&, std::byte*, int64_t) override {}
  void choose(const LinearBackwardWeight&, std::byte*, int64_t) override {}
  void choose(const ScaledProduct&, std::byte*, int64_t) override {}
  std::string algorithms() const override { return record_.text(); }
  void use_algorithms(const std::string& record) override {
    const std::string warning = record_.take(record);
    if (!warning.empty()) warnings_ += warning + '\n';
  }
  std::string take_warnings() override { return std::exchange(warnings_, ""); }

 private:
  template <typename Op>
  void start(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
    simt::start(stream_, [this, product = product_alone(op), scratch, scratch_bytes] {
      const simt::DeviceAccess access;
      run_now(product, scratch, scratch_bytes);
    });
    if (has_more_than_product(op)) run_rest(op, stream_, scratch);
  }

  void run_now(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) {
    const Widened x(op.x), w(op.w), bias(op.bias), y(op.y);
    LinearForward wide = op;
    wide.x = x.matrix();
    wide.w = w.matrix();
    wide.bias = bias.matrix();
    wide.y = y.matrix();
    linear_.run(wide, scratch, scratch_bytes);
    y.put_back();
  }
  void run_now(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) {
    const Widened dy(op.dy), w(op.w), dx(op.dx);
    LinearBackwardInput wide = op;
    wide.dy = dy.matrix();
    wide.w = w.matrix();
    wide.dx = dx.matrix();
    linear_.run(wide, scratch, scratch_bytes);
    dx.put_back();
  }
  void run_now(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) {
    const Widened x(op.x), dy(op.dy);
    LinearBackwardWeight wide = op;
    wide.x = x.matrix();
    wide.dy = dy.matrix();
    linear_.run(wide, scratch, scratch_bytes);
  }

  Stream stream_;
  CpuLinear linear_{1, true};                              // one thread, as the harness
  AlgorithmRecord record_{"host harness", "CPU backend"};  // there is only one algorithm
  std::string warnings_;
};

}  // namespace

std::unique_ptr<Products> make_products(Stream stream, const std::string&) {
  return std::make_unique<HostProducts>(stream);  // nothing is timed
}

}  // namespace gptrain::cuda
