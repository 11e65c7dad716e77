// The kernels of all instruction sets give the same bits.
#include <cstring>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "comm/reduce_kernels.h"
#include "skip.h"

namespace test_reduce {

using namespace gptrain;

namespace {

// Random bits: numbers of very different sizes, NaN among them.
std::vector<uint32_t> random_words(uint32_t seed, size_t count) {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; words.size() < count; ++i)
    for (const uint32_t word : philox({seed, 0}, {i, 0, 0, 0})) words.push_back(word);
  words.resize(count);
  return words;
}

}  // namespace

TEST_CASE("reductions of every type give the same bits under every instruction set") {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") == 0) return testing::skip_case("the CPU has no AVX2");
  constexpr size_t num_words = 2 * 1031;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min})
      for (const int64_t num_inputs : {1, 2, 3, 4, 5, 9}) {
        std::vector<std::vector<uint32_t>> inputs;
        std::vector<const void*> pointers;
        for (int64_t k = 0; k < num_inputs; ++k)
          inputs.push_back(random_words(static_cast<uint32_t>(k) + 1, num_words));
        for (const auto& input : inputs) pointers.push_back(input.data());
        const int64_t count = num_words * 4 / dtype_bytes(dtype);
        std::vector<uint32_t> a(num_words);
        std::vector<uint32_t> b(num_words);
        baseline::reduce_kernel(pointers.data(), num_inputs, a.data(), count, dtype, op);
        x86_64_v3::reduce_kernel(pointers.data(), num_inputs, b.data(), count, dtype, op);
        INFO(dtype_name(dtype) << ", " << static_cast<int>(op) << ", " << num_inputs << " inputs");
        REQUIRE(std::memcmp(a.data(), b.data(), num_words * 4) == 0);
      }
#else
  testing::skip_case("there is one instruction set");
#endif
}

}  // namespace test_reduce
