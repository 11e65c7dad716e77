#include "machine/op_times.h"

#include <algorithm>

#include "base/fp8.h"
#include "ops/footprint.h"
#include "ops/product_waves.h"

namespace gptrain::inline machine {
namespace {

const ProductRate& rate_of(const DeviceProfile& device, DType dtype) {
  if (dtype == DType::f32) return device.f32;
  return is_fp8(dtype) && device.fp8.flops_per_second > 0 ? device.fp8 : device.half;
}

ProductRates wave_rates(const DeviceProfile& device, const ProductRate& rate) {
  return {.flops_per_second = rate.flops_per_second * rate.sustained,
          .multiprocessors = static_cast<double>(device.multiprocessors),
          .fill_depth = device.fill_depth,
          .bytes_per_second = device.bytes_per_second * device.memory_sustained,
          .half_rate_bytes = device.half_rate_bytes};
}

// Interpolates between the shares for heads of 64 and of 128. Smaller heads: in proportion to their size; larger: as
// 128.
double share_of_head(double of_64, double of_128, double head) {
  if (head <= 64) return of_64 * head / 64;
  return head >= 128 ? of_128 : of_64 + (of_128 - of_64) * (head - 64) / 64;
}

}  // namespace

double memory_seconds(const DeviceProfile& device, double bytes) {
  return wave_rates(device, {}).memory_seconds(bytes);
}

double product_seconds(const DeviceProfile& device, const ProductShape& products, double bytes) {
  const ProductRate& rate = rate_of(device, products.dtype);
  return rate.flops_per_second > 0 ? wave_seconds(wave_rates(device, rate), products, bytes) : 0;
}

double fused_attention_seconds(const DeviceProfile& device, const ProductShape& heads, double executed_flops,
                               double bytes) {
  const bool forward = heads.kind == ProductShape::Kind::attention_forward;
  const double share = share_of_head(forward ? device.attention_forward_64 : device.attention_backward_64,
                                     forward ? device.attention_forward_128 : device.attention_backward_128,
                                     static_cast<double>(heads.k));
  const auto length = static_cast<double>(executed_length(heads.n));
  const double reached = share * length / (length + device.attention_half_length);
  const double rate = rate_of(device, heads.dtype).flops_per_second;
  return rate > 0 ? std::max(executed_flops / (rate * reached), memory_seconds(device, bytes)) : 0;
}

double own_attention_seconds(const DeviceProfile& device, const ProductShape& heads, double executed_flops,
                             double bytes) {
  const bool forward = heads.kind == ProductShape::Kind::attention_forward;
  const auto length = static_cast<double>(executed_length(heads.n));
  const double reached = (forward ? device.own_attention_forward : device.own_attention_backward) * length /
                         (length + device.attention_half_length);
  const double rate = rate_of(device, heads.dtype).flops_per_second;
  return rate > 0 ? std::max(executed_flops / (rate * reached), memory_seconds(device, bytes)) : 0;
}

double unfused_attention_seconds(const DeviceProfile& device, const ProductShape& heads) {
  const bool forward = heads.kind == ProductShape::Kind::attention_forward;
  const auto width = static_cast<double>(dtype_bytes(heads.dtype));
  const double scores = static_cast<double>(heads.count) * static_cast<double>(heads.m) * static_cast<double>(heads.n);
  const double rows =
      static_cast<double>(heads.count) * static_cast<double>(heads.m + heads.n) * static_cast<double>(heads.k);
  const double operands = width * (scores + rows);
  ProductShape of_scores = heads;  // forward: q k^T; backward: the gradient of the probabilities
  of_scores.kind = ProductShape::Kind::plain;
  ProductShape of_values = of_scores;  // forward: p v; backward: the gradients of v, q and k
  of_values.n = heads.k;
  of_values.k = heads.n;
  const double one_of_scores = product_seconds(device, of_scores, operands);
  const double one_of_values = product_seconds(device, of_values, operands);
  // Forward: softmax reads and writes; dropout reads, writes and stores a mask. Backward: dropout reads the gradient
  // and the mask, and writes; softmax reads its output and the gradient, and writes.
  const double softmax = memory_seconds(device, (forward ? 2 : 3) * width * scores);
  const double dropout = memory_seconds(device, (2 * width + 1) * scores);
  return (forward ? one_of_scores + one_of_values : one_of_scores + 3 * one_of_values) + softmax + dropout;
}

double op_seconds(const DeviceProfile& device, const Event& op, AttentionKernels attention) {
  const auto bytes = static_cast<double>(op.bytes_moved);
  switch (op.products.kind) {
    case ProductShape::Kind::none:
      break;
    case ProductShape::Kind::plain:
      return device.launch_seconds + product_seconds(device, op.products, bytes);
    case ProductShape::Kind::attention_forward:
    case ProductShape::Kind::attention_backward: {
      const bool forward = op.products.kind == ProductShape::Kind::attention_forward;
      const bool is_own = op.products.own != OwnAttention::no;
      auto flops = static_cast<double>(op.executed_flops);
      if (attention == AttentionKernels::own && is_own)
        return device.launch_seconds + own_attention_seconds(device, op.products, flops, bytes);
      if (attention != AttentionKernels::unfused) {
        if (is_own && !forward) flops *= static_cast<double>(library_backward_products) / own_backward_products;
        return device.launch_seconds + fused_attention_seconds(device, op.products, flops, bytes);
      }
      const int kernels = forward ? 4 : 6;
      return kernels * device.launch_seconds + unfused_attention_seconds(device, op.products);
    }
  }
  return device.launch_seconds + memory_seconds(device, bytes);
}

}  // namespace gptrain::machine
