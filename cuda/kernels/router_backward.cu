// The gradient of a router's logits, and the sum that balances its experts where ranks share a sequence.
#include "kernels/router_rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

using namespace router;

// counts[chunk][e] = the rows of the chunk that chose e.
__global__ void count_chosen(Chunks chunks, Rows<const int32_t> experts, int64_t k, int64_t num_experts,
                             int32_t* counts) {
  const int64_t first = chunks.first_row(blockIdx.x), rows = chunks.rows_of(blockIdx.x);
  for (int64_t e = threadIdx.x; e < num_experts; e += threads) {
    int32_t count = 0;
    for (int64_t row = first; row < first + rows; ++row)
      for (int64_t j = 0; j < k; ++j) count += *experts.at(row, j) == e ? 1 : 0;
    counts[blockIdx.x * num_experts + e] = count;
  }
}

// Sources of the loads of a run, of which the first that is given is used: an excess that stands for them, the loads
// over all ranks, counts of chunks.
struct Loads {
  const float* excess;
  Rows<const float> loads;
  const int32_t* counts;
  double factor;  // factor of a load; an excess has factor 1
};

// gradients[run][e] = the gradient of the balance loss for the shares of the run's rows, whose loads are constants.
__global__ void balance_gradients(Chunks chunks, Loads from, const StepState* state, double factor, int64_t runs,
                                  int64_t num_experts, float* gradients) {
  const double scale = factor * static_cast<double>(state->loss_scale.value);
  for_each_pack<1>(runs, num_experts, [&](int64_t run, int64_t e) {
    float& gradient = gradients[run * num_experts + e];
    if (from.excess != nullptr) {
      gradient = static_cast<float>(scale) * (1 + from.excess[e]);
      return;
    }
    float load = 0;
    if (from.loads.data != nullptr) {
      load = *from.loads.at(run, e);
    } else {
      for (int64_t chunk = 0; chunk < chunks.per_run; ++chunk)
        load += static_cast<float>(from.counts[(run * chunks.per_run + chunk) * num_experts + e]);
    }
    gradient = load * static_cast<float>(scale * from.factor);
  });
}

struct RouterGradient {
  RouterRule rule;
  Rows<const float> logits;
  Rows<const int32_t> experts, slots;
  const float* d_weights;
  const float* balance;  // [runs, E], or null: there is no such loss
  Rows<float> d_logits;
  int64_t rows, count, k;
};

// RETURNS the gradient of the weight of a row's expert j; 0 if that expert has dropped the row.
__device__ float d_weight(const RouterGradient& op, const int32_t* slots, int64_t j) {
  return slots[j] < 0 ? 0.0F : op.d_weights[slots[j]];
}

__device__ void row_gradient(const RouterGradient& op, int64_t row, float z_factor) {
  const float* const logits = op.logits.at(row, 0);
  const int32_t *const experts = op.experts.at(row, 0), *const slots = op.slots.at(row, 0);
  float* const d_logits = op.d_logits.at(row, 0);
  const RowScores scores(logits, op.count, op.rule.score);
  const auto scale = static_cast<float>(op.rule.scale);
  const float divisor = divisor_of(op.rule, scores, logits, experts, op.k);
  // Mean of the gradients of the weights before `scale`, weighted by these weights; 0 without `renormalise`.
  float weighted = 0, chosen = 0;
  for (int64_t j = lane(); j < op.k && op.rule.renormalise; j += 32)
    weighted += scores.score(logits[experts[j]]) / divisor * scale * d_weight(op, slots, j);
  const float mean = warp_sum(weighted);
  for (int64_t j = lane(); j < op.k; j += 32)
    chosen += (scale * d_weight(op, slots, j) - mean) / divisor * scores.score(logits[experts[j]]);
  // A softmax subtracts its share of this sum from the gradient of each logit. With `renormalise` the sum is 0.
  const float of_all = warp_sum(chosen);
  const float subtracted = scores.by_sigmoid || op.rule.renormalise ? 0.0F : of_all;
  const float* const balance = op.balance != nullptr ? op.balance + row / op.rule.own_rows() * op.count : nullptr;
  float shares = 0;
  for (int64_t e = lane(); balance != nullptr && e < op.count; e += 32) shares += scores.share(logits[e]) * balance[e];
  const float mean_balance = warp_sum(shares);
  const float of_z = 2.0F * z_factor * scores.log_sum();
  for (int64_t e = lane(); e < op.count; e += 32) {
    const float logit = logits[e], of_balance = balance != nullptr ? balance[e] - mean_balance : 0.0F;
    d_logits[e] = scores.by_sigmoid ? of_z * scores.softmax(logit) + of_balance / scores.sigmoids * scores.slope(logit)
                                    : scores.softmax(logit) * (of_z + of_balance - subtracted);
  }
  __syncwarp();  // other lanes wrote the chosen experts' gradients
  for (int64_t j = lane(); j < op.k; j += 32)
    d_logits[experts[j]] += (scale * d_weight(op, slots, j) - mean) / divisor * scores.slope(logits[experts[j]]);
}

__global__ void router_gradients(RouterGradient op, const StepState* state, float z_factor) {
  const float of_z = z_factor * state->loss_scale.value;
  const int64_t step = static_cast<int64_t>(gridDim.x) * warps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + warp(); row < op.rows; row += step)
    row_gradient(op, row, of_z);
}

// sums[chunk] = sum over its rows and all experts of load times share.
__global__ void weigh_loads(Chunks chunks, RouterScore kind, Rows<const float> logits, Rows<const float> loads,
                            int64_t count, float* sums) {
  float(&of_rows)[gpu_routing_chunk] = shared<float[gpu_routing_chunk]>();
  const int64_t first = chunks.first_row(blockIdx.x), rows = chunks.rows_of(blockIdx.x);
  for (int64_t i = warp(); i < rows; i += warps) {
    const float* const row = logits.at(first + i, 0);
    const RowScores scores(row, count, kind);
    float sum = 0;
    for (int64_t e = lane(); e < count; e += 32)
      sum += *loads.at(blockIdx.x / chunks.per_run, e) * scores.share(row[e]);
    sum = warp_sum(sum);
    if (lane() == 0) of_rows[i] = sum;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += of_rows[i];
  sums[blockIdx.x] = sum;
}

__global__ void add_balance(const float* sums, int64_t chunks, double factor, double* to) {
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += static_cast<double>(sums[chunk]);
  *to += sum * factor;
}

LaunchShape shape_of_rows(int64_t rows) {
  constexpr int64_t most_blocks = 2048;
  return {std::clamp<int64_t>((rows + warps - 1) / warps, 1, most_blocks), threads, 0};
}

}  // namespace

void cuda_run(const RouteTokensBackward& op, Stream stream, std::byte* scratch) {
  const Chunks chunks(op.rule, op.logits.rows);
  const int64_t count = op.logits.cols, k = op.experts.cols, runs = op.logits.rows / op.rule.own_rows();
  auto* const gradients = reinterpret_cast<float*>(scratch);
  auto* const counts = reinterpret_cast<int32_t*>(gradients + runs * count);
  const bool balances = op.balance_factor > 0;
  if (balances) {
    if (!op.excess.given() && !op.loads.given())
      launch(stream, {chunks.count, threads, 0}, count_chosen, chunks, Rows<const int32_t>(op.experts), k, count,
             counts);
    const auto length = static_cast<double>(op.rule.balanced_rows);
    const double of_load = static_cast<double>(count) / (length * static_cast<double>(k));
    launch(stream, shape_of_elements(runs, count, 1), balance_gradients, chunks,
           Loads{op.excess.as<const float>(), Rows<const float>(op.loads), counts, of_load}, op.state,
           op.balance_factor / length, runs, count, gradients);
  }
  launch(stream, shape_of_rows(op.logits.rows), router_gradients,
         RouterGradient{op.rule, Rows<const float>(op.logits), Rows<const int32_t>(op.experts),
                        Rows<const int32_t>(op.slots), op.d_weights.as<const float>(), balances ? gradients : nullptr,
                        Rows<float>(op.d_logits), op.logits.rows, count, k},
         op.state, static_cast<float>(op.z_factor));
}

void cuda_run(const AddBalance& op, Stream stream, std::byte* scratch) {
  const Chunks chunks(op.rule, op.logits.rows);
  auto* const sums = reinterpret_cast<float*>(scratch);
  launch(stream, {chunks.count, threads, sizeof(float[gpu_routing_chunk])}, weigh_loads, chunks, op.rule.score,
         Rows<const float>(op.logits), Rows<const float>(op.loads), op.logits.cols, sums);
  const auto length = static_cast<double>(op.rule.balanced_rows);
  launch(stream, {1, 1, 0}, add_balance, sums, chunks.count,
         static_cast<double>(op.logits.cols) / (length * length * static_cast<double>(op.top_k)),
         op.statistics.as<double>() + op.logits.cols);
}

}  // namespace gptrain::cuda
