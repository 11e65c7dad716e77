#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

namespace gptrain {
namespace {

template <ReduceOp op, typename T>
T combine(T a, T b) {
  if constexpr (op == ReduceOp::sum) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  } else {
    const bool keep = op == ReduceOp::max ? a > b : a < b;
    return keep || a != a ? a : b;
  }
}

float widen(bf16 value) { return to_float(value); }
template <typename T>
T widen(T value) {
  return value;
}
void narrow(float value, bf16& out) { out = to_bf16(value); }
template <typename T>
void narrow(T value, T& out) {
  out = value;
}

// Works through a block that stays in the nearest cache, which is read from every input before any of it is written.
template <typename T, ReduceOp op>
void reduce_blocks(std::span<const void* const> inputs, T* out, int64_t count) {
  using Wide = decltype(widen(T{}));
  constexpr int64_t block_size = 1024;
  alignas(64) Wide block[block_size];
  for (int64_t start = 0; start < count; start += block_size) {
    const int64_t n = std::min(block_size, count - start);
    const T* first = static_cast<const T*>(inputs[0]) + start;
    if (inputs.size() == 1) {
      for (int64_t i = 0; i < n; ++i) block[i] = widen(first[i]);
    } else {
      const T* second = static_cast<const T*>(inputs[1]) + start;
      for (int64_t i = 0; i < n; ++i) block[i] = combine<op>(widen(first[i]), widen(second[i]));
    }
    for (size_t k = 2; k < inputs.size(); ++k) {
      const T* in = static_cast<const T*>(inputs[k]) + start;
      for (int64_t i = 0; i < n; ++i) block[i] = combine<op>(block[i], widen(in[i]));
    }
    for (int64_t i = 0; i < n; ++i) narrow(block[i], out[start + i]);
  }
}

template <typename T>
void reduce_type(std::span<const void* const> inputs, void* out, int64_t count, ReduceOp op) {
  T* typed = static_cast<T*>(out);
  if (op == ReduceOp::sum) reduce_blocks<T, ReduceOp::sum>(inputs, typed, count);
  if (op == ReduceOp::max) reduce_blocks<T, ReduceOp::max>(inputs, typed, count);
  if (op == ReduceOp::min) reduce_blocks<T, ReduceOp::min>(inputs, typed, count);
}

}  // namespace

void reduce(std::span<const void* const> inputs, void* out, int64_t count, DType dtype, ReduceOp op) {
  if (dtype == DType::f32) reduce_type<float>(inputs, out, count, op);
  if (dtype == DType::bf16) reduce_type<bf16>(inputs, out, count, op);
  if (dtype == DType::f64) reduce_type<double>(inputs, out, count, op);
  if (dtype == DType::i32) reduce_type<int32_t>(inputs, out, count, op);
  if (dtype == DType::i64) reduce_type<int64_t>(inputs, out, count, op);
}

}  // namespace gptrain
