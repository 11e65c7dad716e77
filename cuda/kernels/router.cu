// A router's choice: the experts of each row, the copies that experts keep, and their slots. Nothing is added by
// atomics: a block counts the copies of a chunk of rows, one block adds up the chunks, and a copy's slot is the first
// slot of its expert and chunk plus the copy's place among their copies.
#include <utility>

#include "kernels/router_rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

using namespace router;

constexpr unsigned place_threads = 1024, sum_threads = 256;

// The parts of the scratch memory.
struct RouteScratch {
  float *weights, *keys;                // [N, k]; [N, E], or null: experts are chosen by their logits
  int32_t *chosen, *kept, *first_slot;  // [chunks, E]; `kept` is `chosen` without a capacity
  float *shares, *sums;                 // [chunks, E], [chunks, 2]: of logsumexp^2 and of the entropy

  RouteScratch(const RouteTokens& op, std::byte* scratch) {
    const GpuRoutingSizes sizes(op);
    auto* next = reinterpret_cast<float*>(scratch);
    const auto take = [&](int64_t count) { return std::exchange(next, next + count); };
    weights = take(sizes.copies);
    keys = sizes.keys > 0 ? take(sizes.keys) : nullptr;
    chosen = reinterpret_cast<int32_t*>(take(sizes.counts));
    kept = op.rule.capacity > 0 ? reinterpret_cast<int32_t*>(take(sizes.counts)) : chosen;
    first_slot = reinterpret_cast<int32_t*>(take(sizes.counts));
    shares = take(sizes.counts);
    sums = take(2 * sizes.chunks);
  }
};

struct Router {
  RouterRule rule;
  Chunks chunks;
  Rows<const float> logits;
  const float* bias;
  Rows<int32_t> experts, slots;
  int64_t count, k;  // experts in all, and of a row
  RouteScratch scratch;
  bool has_statistics;
};

// Shared memory of a block that chooses: each warp's sums of groups, and the numbers from which a row's shares follow.
struct ChosenRows {
  float groups[warps][most_expert_groups];
  struct Row {
    float maximum, sum, sigmoids, square, entropy;
  } rows[gpu_routing_chunk];
};

// RETURNS the lowest expert that is not chosen yet: a row takes it if its other logits are NaN.
__device__ int32_t first_left(const int32_t* chosen, int64_t num_chosen) {
  for (int32_t e = 0;; ++e) {
    bool taken = false;
    for (int64_t j = 0; j < num_chosen; ++j) taken = taken || chosen[j] == e;
    if (!taken) return e;
  }
}

// RETURNS the numbers by which a row's experts are chosen: its logits, or s + bias.
__device__ const float* choice_keys(const Router& op, const RowScores& scores, int64_t row, float* groups) {
  const float* const logits = op.logits.at(row, 0);
  if (op.scratch.keys == nullptr) return logits;
  float* const keys = op.scratch.keys + row * op.count;
  for (int64_t e = lane(); e < op.count; e += 32)
    keys[e] = scores.score(logits[e]) + (op.bias != nullptr ? op.bias[e] : 0.0F);
  __syncwarp();
  if (op.rule.groups > 1) leave_groups(op.rule, op.k, keys, op.count, groups);
  return keys;
}

__device__ void choose_row(const Router& op, const float* keys, int64_t row) {
  int32_t* const experts = op.experts.at(row, 0);
  int32_t last = -1;
  for (int64_t j = 0; j < op.k; ++j) {
    const int32_t next = last < 0 && j > 0 ? -1 : next_expert(keys, op.count, last);
    const bool is_number = next >= 0 && keys[next] == keys[next];
    const int32_t chosen = is_number ? next : first_left(experts, j);
    __syncwarp();
    if (lane() == 0) experts[j] = chosen;
    __syncwarp();
    last = is_number ? next : -1;
  }
}

// A block per chunk, a warp per row.
__global__ void choose_experts(Router op) {
  auto& block = shared<ChosenRows>();
  const int64_t first = op.chunks.first_row(blockIdx.x), rows = op.chunks.rows_of(blockIdx.x);
  for (int64_t i = warp(); i < rows; i += warps) {
    const int64_t row = first + i;
    const float* const logits = op.logits.at(row, 0);
    const int32_t* const experts = op.experts.at(row, 0);
    const RowScores scores(logits, op.count, op.rule.score);
    choose_row(op, choice_keys(op, scores, row, block.groups[warp()]), row);
    const float divisor = divisor_of(op.rule, scores, logits, experts, op.k);
    for (int64_t j = lane(); j < op.k; j += 32)
      op.scratch.weights[row * op.k + j] =
          scores.score(logits[experts[j]]) / divisor * static_cast<float>(op.rule.scale);
    if (!op.has_statistics) continue;
    float entropy = 0;
    for (int64_t e = lane(); e < op.count; e += 32) {
      const float share = scores.share(logits[e]);
      if (share > 0) entropy -= share * logf(share);
    }
    entropy = warp_sum(entropy);
    if (lane() == 0)
      block.rows[i] = {scores.maximum, scores.sum, scores.sigmoids, scores.log_sum() * scores.log_sum(), entropy};
  }
  if (!op.has_statistics) return;
  __syncthreads();
  for (int64_t e = threadIdx.x; e < op.count; e += threads) {
    float sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const auto& row = block.rows[i];
      const float logit = *op.logits.at(first + i, e);
      sum += op.rule.score == RouterScore::sigmoid ? sigmoid(logit).value / row.sigmoids
                                                   : expf(logit - row.maximum) / row.sum;
    }
    op.scratch.shares[blockIdx.x * op.count + e] = sum;
  }
  if (threadIdx.x > 0) return;
  float squares = 0, entropy = 0;
  for (int64_t i = 0; i < rows; ++i) {
    squares += block.rows[i].square;
    entropy += block.rows[i].entropy;
  }
  op.scratch.sums[2 * blockIdx.x] = squares;
  op.scratch.sums[2 * blockIdx.x + 1] = entropy;
}

// Sets the slots of copies that are dropped to -1, all others to 0: a copy is compared with all of its expert's in the
// rows that share a capacity.
__global__ void drop_copies(Router op) {
  const int64_t first = op.chunks.first_row(blockIdx.x), copies = op.chunks.rows_of(blockIdx.x) * op.k;
  const bool by_position = op.rule.drop == DropRule::position;
  for (int64_t i = threadIdx.x; i < copies; i += threads) {
    const int64_t row = first + i / op.k, copy = row * op.k + i % op.k;
    const int64_t first_row = row / op.rule.capacity_rows * op.rule.capacity_rows;
    const int32_t expert = *op.experts.at(row, i % op.k);
    const float weight = op.scratch.weights[copy];
    int64_t better = 0;
    for (int64_t other_row = first_row; other_row < first_row + op.rule.capacity_rows; ++other_row) {
      if (by_position && other_row == row) break;
      for (int64_t j = 0; j < op.k; ++j) {
        if (*op.experts.at(other_row, j) != expert) continue;
        const float other = op.scratch.weights[other_row * op.k + j];
        better += by_position || other > weight || (!(other < weight) && other_row < row) ? 1 : 0;
      }
    }
    *op.slots.at(row, i % op.k) = better < op.rule.capacity ? 0 : -1;
  }
}

// counts[chunk][e] = number of copies of the chunk's rows that expert e has or, if `kept`, keeps.
__global__ void count_copies(Router op, bool kept, int32_t* counts) {
  const int64_t first = op.chunks.first_row(blockIdx.x), rows = op.chunks.rows_of(blockIdx.x);
  for (int64_t e = threadIdx.x; e < op.count; e += threads) {
    int32_t count = 0;
    for (int64_t row = first; row < first + rows; ++row)
      for (int64_t j = 0; j < op.k; ++j)
        count += *op.experts.at(row, j) == e && (!kept || *op.slots.at(row, j) >= 0) ? 1 : 0;
    counts[blockIdx.x * op.count + e] = count;
  }
}

// RETURNS the sum of the values of the lanes before this one, and sets `value` to the sum over all lanes.
__device__ int32_t sum_before(int32_t& value) {
  const int32_t own = value;
  int32_t sum = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int32_t other = __shfl_sync(0xffffffff, sum, static_cast<unsigned>(lane() - distance) % 32);
    if (lane() >= distance) sum += other;
  }
  value = __shfl_sync(0xffffffff, sum, 31);
  return sum - own;
}

// Computes the offsets, and the first slot of each chunk's copies of each expert. Runs as one block.
__global__ void __launch_bounds__(place_threads) place_chunks(Router op, int32_t* offsets) {
  for (int64_t e = threadIdx.x; e < op.count; e += place_threads) {
    int32_t count = 0;
    for (int64_t chunk = 0; chunk < op.chunks.count; ++chunk) count += op.scratch.kept[chunk * op.count + e];
    offsets[e + 1] = count;
  }
  __syncthreads();
  if (warp() == 0) {
    int32_t before = 0;
    for (int64_t first = 0; first < op.count; first += 32) {
      const int64_t e = first + lane();
      const int32_t own = e < op.count ? offsets[e + 1] : 0;
      int32_t all = own;
      const int32_t start = before + sum_before(all);
      if (e < op.count) offsets[e + 1] = start + own;
      before += all;
    }
    if (lane() == 0) offsets[0] = 0;
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < op.count; e += place_threads) {
    int32_t slot = offsets[e];
    for (int64_t chunk = 0; chunk < op.chunks.count; ++chunk) {
      op.scratch.first_slot[chunk * op.count + e] = slot;
      slot += op.scratch.kept[chunk * op.count + e];
    }
  }
}

// A block per chunk, a thread per copy. `marks`: the experts of the chunk's copies, -1 for one that is dropped.
__global__ void fill_slots(Router op, int32_t* rows, float* weights) {
  int32_t* const marks = &shared<int32_t>();
  const int64_t first = op.chunks.first_row(blockIdx.x), copies = op.chunks.rows_of(blockIdx.x) * op.k;
  for (int64_t i = threadIdx.x; i < copies; i += threads) {
    const bool drops = op.rule.capacity > 0 && *op.slots.at(first + i / op.k, i % op.k) < 0;
    marks[i] = drops ? -1 : *op.experts.at(first + i / op.k, i % op.k);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < copies; i += threads) {
    const int32_t expert = marks[i];
    if (expert < 0) continue;
    int32_t slot = op.scratch.first_slot[blockIdx.x * op.count + expert];
    for (int64_t before = 0; before < i; ++before) slot += marks[before] == expert ? 1 : 0;
    const int64_t row = first + i / op.k;
    *op.slots.at(row, i % op.k) = slot;
    rows[slot] = static_cast<int32_t>(row);
    weights[slot] = op.scratch.weights[row * op.k + i % op.k];
  }
}

// Memory for sums over all rows; null: the sums are not wanted.
struct Sums {
  double* statistics;
  Rows<float> loads;
  const float* excess;
  const int32_t* offsets;
  double factor;  // factor of load x shares, summed over experts, or of (1 + excess) x shares
};

// The sums of one expert over a run of rows.
struct RunSums {
  float load;
  float shares;
};

__device__ RunSums sums_of_run(const Router& op, bool with_shares, int64_t run, int64_t e) {
  RunSums sums = {};
  for (int64_t chunk = run * op.chunks.per_run; chunk < (run + 1) * op.chunks.per_run; ++chunk) {
    sums.load += static_cast<float>(op.scratch.chosen[chunk * op.count + e]);
    if (with_shares) sums.shares += op.scratch.shares[chunk * op.count + e];
  }
  return sums;
}

// One block.
__global__ void __launch_bounds__(sum_threads) add_statistics(Router op, Sums to, int64_t runs) {
  double(&parts)[sum_threads] = shared<double[sum_threads]>();
  const bool balances = op.has_statistics && (to.excess != nullptr || to.loads.data == nullptr);
  double balance = 0;
  for (int64_t e = threadIdx.x; e < op.count; e += sum_threads) {
    double load = 0;
    for (int64_t run = 0; run < runs; ++run) {
      const RunSums of_run = sums_of_run(op, balances, run, e);
      load += static_cast<double>(of_run.load);
      if (to.loads.data != nullptr) *to.loads.at(run, e) = of_run.load;
      const float weight = to.excess != nullptr ? 1 + to.excess[e] : of_run.load;
      balance += static_cast<double>(weight) * static_cast<double>(of_run.shares);
    }
    if (op.has_statistics) to.statistics[e] += load;
  }
  if (!op.has_statistics) return;
  parts[threadIdx.x] = balance;
  for (unsigned half = sum_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x > 0) return;
  double squares = 0, entropy = 0;
  for (int64_t chunk = 0; chunk < op.chunks.count; ++chunk) {
    squares += static_cast<double>(op.scratch.sums[2 * chunk]);
    entropy += static_cast<double>(op.scratch.sums[2 * chunk + 1]);
  }
  double* const sums = to.statistics + op.count;
  sums[0] += parts[0] * to.factor;
  sums[1] += squares;
  sums[2] += entropy;
  sums[3] += static_cast<double>(runs * op.chunks.own_rows * op.k - to.offsets[op.count]);
}

double balance_factor(const RouteTokens& op) {
  const auto length = static_cast<double>(op.rule.balanced_rows);
  if (op.excess.given()) return 1 / length;
  return static_cast<double>(op.logits.cols) / (length * length * static_cast<double>(op.experts.cols));
}

}  // namespace

void cuda_run(const RouteTokens& op, Stream stream, std::byte* scratch) {
  const Chunks chunks(op.rule, op.logits.rows);
  const Router router = {op.rule,
                         chunks,
                         Rows<const float>(op.logits),
                         op.bias.as<const float>(),
                         Rows<int32_t>(op.experts),
                         Rows<int32_t>(op.slots),
                         op.logits.cols,
                         op.experts.cols,
                         RouteScratch(op, scratch),
                         op.statistics.given()};
  const LaunchShape of_chunks = {chunks.count, threads, 0};
  launch(stream, {chunks.count, threads, sizeof(ChosenRows)}, choose_experts, router);
  launch(stream, of_chunks, count_copies, router, false, router.scratch.chosen);
  if (op.rule.capacity > 0) {
    launch(stream, of_chunks, drop_copies, router);
    launch(stream, of_chunks, count_copies, router, true, router.scratch.kept);
  }
  launch(stream, {1, place_threads, 0}, place_chunks, router, op.offsets.as<int32_t>());
  const auto marks = static_cast<size_t>(gpu_routing_chunk * op.experts.cols) * sizeof(int32_t);
  launch(stream, {chunks.count, threads, marks}, fill_slots, router, op.rows.as<int32_t>(), op.weights.as<float>());
  if (!op.statistics.given() && !op.loads.given()) return;
  launch(stream, {1, sum_threads, sizeof(double[sum_threads])}, add_statistics, router,
         Sums{op.statistics.as<double>(), Rows<float>(op.loads), op.excess.as<const float>(),
              op.offsets.as<const int32_t>(), balance_factor(op)},
         gpu_routing_runs(op.rule, op.logits.rows));
}

}  // namespace gptrain::cuda
