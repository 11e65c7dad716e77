// FP8 copies of a bf16 matrix that is stored, and the amax of a matrix that comes without one.
#include <cmath>

#include "kernels/fp8_copies.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

__global__ void find_amax(Rows<const bf16> x, int64_t rows, int64_t cols, float* parts) {
  RunningAmax amax(parts);
  for_each_pack<pack_width>(rows, cols,
                            [&](int64_t row, int64_t column) { amax.see(load<pack_width>(x.at(row, column))); });
  amax.leave();
}

// A thread per amax.
__global__ void roll_amaxes(const float* amaxes, Rows<float> history, int64_t length, const float* initial,
                            float* forecast, int64_t count, const StepState* state) {
  if (state->skip != 0) return;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float amax = amaxes[i];
  const float kept = amax > 0 && amax < INFINITY ? amax : 0.0F;
  const int64_t row = (state->updates - 1) % length;
  float largest = kept;
#pragma unroll 8
  for (int64_t step = 0; step < length; ++step) {
    const float earlier = step == row ? 0.0F : *history.at(step, i);
    largest = earlier > largest ? earlier : largest;
  }
  *history.at(row, i) = kept;
  forecast[i] = largest > 0 ? largest : initial[i];
}

struct Stored {
  static constexpr int parts = 1;
  Rows<const bf16> x;

  __device__ void values(int64_t row, int64_t column, Pack<bf16, pack_width> (&out)[parts]) const {
    out[0] = load<pack_width>(x.at(row, column));
  }
};

}  // namespace

void cuda_run(const Amax& op, Stream stream, std::byte*) {
  LaunchShape shape = shape_of_elements(op.x.rows, op.x.cols, pack_width);
  shape.shared_bytes = sizeof(WarpMaxima);
  launch(stream, shape, find_amax, Rows<const bf16>(op.x), op.x.rows, op.x.cols, op.amax.as<float>());
}

void cuda_run(const RollAmaxes& op, Stream stream, std::byte*) {
  constexpr unsigned threads = 32;
  launch(stream, {(op.amaxes.cols + threads - 1) / threads, threads, 0}, roll_amaxes, op.amaxes.as<const float>(),
         Rows<float>(op.history), op.history.rows, op.initial.as<const float>(), op.forecast.as<float>(),
         op.amaxes.cols, op.state);
}

void cuda_run(const Quantize& op, Stream stream, std::byte* scratch) {
  launch_fp8_copies(Stored{Rows<const bf16>(op.x)}, op.x.rows, op.x.cols, op.to, stream, scratch);
}

}  // namespace gptrain::cuda
