// Runs one kernel, sound or deliberately broken, so that the calling test sees if the harness reports it.
//   kernels NAME [SEED]     exit 0 and "sum N"; or a fault's text and exit 3; or a sanitizer's report
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "simt.h"

namespace {

using gptrain::shared;

constexpr unsigned threads = 64;
constexpr unsigned blocks = 3;

// The broken line.
enum class Broken { none, barrier, reuse, global, shared_memory, shuffle, leaves, elsewhere, lane, warp_barrier };

struct Sums {
  float of_warp[threads / 32];
  float partial[threads / 32];
};

__device__ float warp_sum(float value) {
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  return value;
}

// out[block] = sum of rows [2 block, 2 block + 2) of length n, one row after the other through the same shared memory.
__global__ void row_sums(const float* in, float* out, unsigned n, Broken broken) {
  Sums& sums = shared<Sums>();
  const unsigned warp = threadIdx.x / 32;
  float total = 0;
  for (unsigned row = 2 * blockIdx.x; row < 2 * blockIdx.x + 2; ++row) {
    float own = 0;
    const unsigned end = broken == Broken::global && row == 2 * gridDim.x - 1 ? n + 1 : n;
    for (unsigned i = threadIdx.x; i < end; i += blockDim.x) own += in[row * n + i];
    if (broken == Broken::leaves && threadIdx.x == 5) return;
    if (broken == Broken::shuffle && threadIdx.x % 32 == 7) {
      own += __shfl_xor_sync(0xffffffff, own, 1);
    } else {
      own = warp_sum(own);
    }
    if (broken == Broken::lane && threadIdx.x == 3) own = __shfl_xor_sync(0xfffffff0, own, 1);
    if (threadIdx.x % 32 == 0) sums.of_warp[warp] = own;
    if (broken != Broken::warp_barrier) __syncwarp();
    own = sums.of_warp[warp];
    if (threadIdx.x % 32 == 0) sums.partial[warp + (broken == Broken::shared_memory ? 1 : 0)] = own;
    if (broken != Broken::barrier) {
      if (broken == Broken::elsewhere && threadIdx.x == 9) {
        __syncthreads();
      } else {
        __syncthreads();
      }
    }
    for (const float partial : sums.partial) total += partial;
    if (broken != Broken::reuse) __syncthreads();  // before the next row overwrites them
  }
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

Broken broken_of(const std::string& name) {
  const char* const names[] = {"none",    "barrier", "reuse",     "global", "shared_memory",
                               "shuffle", "leaves",  "elsewhere", "lane",   "warp_barrier"};
  for (int i = 0; i < 10; ++i)
    if (name == names[i]) return static_cast<Broken>(i);
  std::fprintf(stderr, "no such kernel: %s\n", name.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const Broken broken = broken_of(argv[1]);
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  constexpr unsigned n = 100;
  std::vector<float> in(2 * blocks * n, 1.0F);
  in.shrink_to_fit();
  std::vector<float> out(blocks);
  try {
    gptrain::simt::run_grid(blocks, threads, sizeof(Sums), seed, [&] { row_sums(in.data(), out.data(), n, broken); });
  } catch (const gptrain::simt::Fault& fault) {
    std::printf("fault: %s\n", fault.what());
    return 3;
  }
  float sum = 0;
  for (const float value : out) sum += value;
  std::printf("sum %g\n", static_cast<double>(sum));
}
