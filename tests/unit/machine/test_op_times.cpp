// Times of ops compared with their known limits.
#include "catch.h"
#include "machine/op_times.h"
#include "machine/profiles.h"
#include "ops/footprint.h"
#include "ops/ops.h"

namespace gptrain::test_op_times {
namespace {

ProductShape product(int64_t m, int64_t n, int64_t k, int64_t count = 1) {
  return {.kind = ProductShape::Kind::plain, .dtype = DType::bf16, .count = count, .m = m, .n = n, .k = k};
}

double flops_of(const ProductShape& p) {
  return 2.0 * static_cast<double>(p.count) * static_cast<double>(p.m) * static_cast<double>(p.n) *
         static_cast<double>(p.k);
}

double efficiency(const DeviceProfile& device, const ProductShape& p) {
  return flops_of(p) / product_seconds(device, p, 0) / (device.half.flops_per_second * device.half.sustained);
}

TEST_CASE("large products reach the sustained rate, none reaches more") {
  const DeviceProfile device = find_device("a100-80g");
  // 108 multiprocessors: 54 x 64 tiles are 32 whole waves.
  CHECK(efficiency(device, product(54 * 256, 64 * 128, 65536)) > 0.99);
  for (const int64_t m : {1, 64, 100, 2048, 2049, 8192})
    for (const int64_t n : {16, 768, 2304, 50304})
      for (const int64_t k : {16, 768, 12288}) CHECK(efficiency(device, product(m, n, k)) <= 1);
}

TEST_CASE("products of experts cost as much as many small ones") {
  const Target target;
  const auto forward = [&](int64_t experts, int64_t rows) {
    return footprint(GroupedLinearForward{.x = Matrix(nullptr, DType::bf16, rows, 1024),
                                          .w = Matrix(nullptr, DType::bf16, experts * 2048, 1024),
                                          .offsets = Matrix(nullptr, DType::i32, 1, experts + 1),
                                          .y = Matrix(nullptr, DType::bf16, rows, 2048)},
                     target);
  };
  const ProductShape of_experts = forward(128, 1000).products;
  CHECK(of_experts.count == 128);
  CHECK(of_experts.m == 8);
  CHECK((of_experts.n == 2048 && of_experts.k == 1024));
  CHECK(forward(128, 1000).executed_flops == forward(1, 1000).executed_flops);
  const DeviceProfile device = find_device("h100-sxm");
  CHECK(product_seconds(device, of_experts, 0) > 4 * product_seconds(device, forward(1, 1000).products, 0));
  const GroupedLinearBackwardWeight backward{.x = Matrix(nullptr, DType::bf16, 1024, 256),
                                             .dy = Matrix(nullptr, DType::bf16, 1024, 512),
                                             .offsets = Matrix(nullptr, DType::i32, 1, 9),
                                             .dw = Matrix(nullptr, DType::f32, 8 * 512, 256),
                                             .accumulate = false};
  const ProductShape of_weights = footprint(backward, target).products;
  CHECK((of_weights.count == 8 && of_weights.m == 512 && of_weights.n == 256 && of_weights.k == 128));
}

TEST_CASE("a tile more than whole waves costs a wave") {
  DeviceProfile device = find_device("a100-80g");
  device.multiprocessors = 4;
  const int64_t k = 1000;  // too short to be split
  const double whole = product_seconds(device, product(4 * 256, 128, k), 0);
  CHECK(product_seconds(device, product(4 * 256 - 255, 128, k), 0) == Approx(whole));
  const double more = product_seconds(device, product(4 * 256 + 1, 128, k), 0);
  // One row more: smaller tiles cost less than another wave of large ones.
  CHECK(more > 1.5 * whole);
  CHECK(more < 2 * whole);
  CHECK(product_seconds(device, product(256, 128, k, 4), 0) == Approx(whole));
}

TEST_CASE("few outputs with a great depth are cut along the depth") {
  const DeviceProfile device = find_device("a100-80g");
  const ProductShape narrow = product(256, 256, 1 << 20);
  // Without splits only 4 tiles would keep 108 multiprocessors busy.
  CHECK(efficiency(device, narrow) > 0.3);
}

TEST_CASE("a product of few rows takes the time that its weights take to be read") {
  const DeviceProfile device = find_device("h100");
  const double bytes = 2.0 * 8192 * 8192;
  CHECK(product_seconds(device, product(1, 8192, 8192), bytes) == Approx(memory_seconds(device, bytes)));
}

TEST_CASE("memory-bound ops reach half of the rate at half_rate_bytes and nearly all of it beyond") {
  const DeviceProfile device = find_device("a100-80g");
  const double rate = device.bytes_per_second * device.memory_sustained;
  CHECK(device.half_rate_bytes / memory_seconds(device, device.half_rate_bytes) == Approx(rate / 2));
  CHECK(1e9 / memory_seconds(device, 1e9) > 0.99 * rate);
}

TEST_CASE("attention in parts costs more than fused attention, and the more the longer its sequence") {
  const DeviceProfile device = find_device("a100-80g");
  double before = 1;
  for (const int64_t length : {512, 2048, 8192}) {
    Event event{.executed_flops = static_cast<Flops>(4 * 16 * length * length / 2 * 128)};
    event.products = {.kind = ProductShape::Kind::attention_forward,
                      .dtype = DType::bf16,
                      .count = 16,
                      .m = length,
                      .n = length,
                      .k = 128};
    const double ratio =
        op_seconds(device, event, AttentionKernels::unfused) / op_seconds(device, event, AttentionKernels::own);
    CHECK(ratio > before);
    before = ratio;
    Event backward = event;
    backward.products.kind = ProductShape::Kind::attention_backward;
    backward.executed_flops = event.executed_flops * 5 / 2;
    CHECK(op_seconds(device, backward, AttentionKernels::own) >
          2.5 * op_seconds(device, event, AttentionKernels::own) - device.launch_seconds * 3);
    CHECK(op_seconds(device, backward, AttentionKernels::unfused) >
          1.3 * op_seconds(device, event, AttentionKernels::unfused));
  }
}

TEST_CASE("attention takes the rate of the kernels that serve it") {
  const DeviceProfile device = find_device("a100-80g");
  Event event{.executed_flops = static_cast<Flops>(7) << 40};
  event.products = {.kind = ProductShape::Kind::attention_backward,
                    .dtype = DType::bf16,
                    .count = 16,
                    .m = 2048,
                    .n = 2048,
                    .k = 128,
                    .own = OwnAttention::fixed_bits};
  Event served = event;
  served.products.own = OwnAttention::no;
  served.executed_flops = static_cast<Flops>(5) << 40;
  const double library = op_seconds(device, served, AttentionKernels::own);
  CHECK(op_seconds(device, event, AttentionKernels::library) == Approx(library));
  CHECK(op_seconds(device, event, AttentionKernels::own) - device.launch_seconds ==
        Approx((library - device.launch_seconds) * 7 / 5 * device.attention_backward_128 /
               device.own_attention_backward));
}

TEST_CASE("no sequence takes less time in attention than a shorter one") {
  const DeviceProfile device = find_device("a100-80g");
  double before = 0;
  for (int64_t tokens = 1; tokens < 400; ++tokens) {
    // Whole tiles of 64 x 64 pairs, including those on the diagonal.
    const int64_t tiles = (tokens + 63) / 64;
    const ProductShape heads{.kind = ProductShape::Kind::attention_forward,
                             .dtype = DType::bf16,
                             .count = 1024,
                             .m = tokens,
                             .n = tokens,
                             .k = 128};
    const double flops = 4.0 * 64 * 64 * 128 * 1024 * static_cast<double>(tiles * (tiles + 1) / 2);
    const double seconds = fused_attention_seconds(device, heads, flops, 0);
    INFO(tokens);
    REQUIRE(seconds >= before);
    before = seconds;
  }
}

TEST_CASE("a device without a dtype's products takes its 16-bit ones for FP8") {
  const DeviceProfile h100 = find_device("h100"), a100 = find_device("a100-80g");
  ProductShape fp8 = product(8192, 8192, 8192);
  const double half = product_seconds(h100, fp8, 0), of_a100 = product_seconds(a100, fp8, 0);
  fp8.dtype = DType::f8e4m3;
  CHECK(product_seconds(h100, fp8, 0) < 0.6 * half);
  CHECK(product_seconds(a100, fp8, 0) == of_a100);
}

}  // namespace
}  // namespace gptrain::test_op_times
