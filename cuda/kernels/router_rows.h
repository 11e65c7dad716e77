// Rows of a router's logits as a warp computes with them. All lanes of a warp call these functions together.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/kinds.h"
#include "kernels/activation_functions.h"
#include "kernels/rows.h"
#include "ops/gpu_scratch.h"
#include "ops/ops.h"

namespace gptrain::inline cuda::router {

constexpr unsigned threads = 256, warps = threads / 32;
constexpr float infinity = INFINITY;

__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp() { return static_cast<int>(threadIdx.x / 32); }

// RETURNS the sum over the lanes, the same bits on each.
__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

// The scores of a row, as functions of a logit.
struct RowScores {
  float maximum, sum;  // sum of e^(logit - maximum)
  float sigmoids;      // sum of sigmoid(logit); 1 for a softmax
  bool by_sigmoid;

  __device__ RowScores(const float* logits, int64_t count, RouterScore kind)
      : by_sigmoid(kind == RouterScore::sigmoid) {
    float largest = -infinity;
    for (int64_t e = lane(); e < count; e += 32) largest = logits[e] > largest ? logits[e] : largest;
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffff, largest, distance);
      largest = other > largest ? other : largest;
    }
    float powers = 0, total = 0;
    for (int64_t e = lane(); e < count; e += 32) {
      powers += expf(logits[e] - largest);
      if (by_sigmoid) total += sigmoid(logits[e]).value;
    }
    maximum = largest;
    sum = warp_sum(powers);
    sigmoids = by_sigmoid ? warp_sum(total) : 1.0F;
  }
  __device__ float softmax(float logit) const { return expf(logit - maximum) / sum; }
  __device__ float log_sum() const { return maximum + logf(sum); }
  // RETURN s of ops/experts.h; its derivative by its own logit, with a softmax's sum held constant; and s / sum s.
  __device__ float score(float logit) const { return by_sigmoid ? sigmoid(logit).value : softmax(logit); }
  __device__ float slope(float logit) const { return by_sigmoid ? sigmoid(logit).slope : softmax(logit); }
  __device__ float share(float logit) const { return by_sigmoid ? sigmoid(logit).value / sigmoids : softmax(logit); }
};

// RETURNS true if `value` comes before `other` in falling order. Equal values are in the order of their experts.
__device__ inline bool is_before(float value, int32_t expert, float other, int32_t other_expert) {
  return value > other || (value == other && expert < other_expert);
}

// RETURNS the expert whose number follows that of expert `last` in falling order; -1: there is none. `last` -1: the
// first in that order, or expert 0 if its number is NaN.
__device__ inline int32_t next_expert(const float* numbers, int64_t count, int32_t last) {
  if (last < 0 && !(numbers[0] == numbers[0])) return 0;
  const float bound = last < 0 ? 0.0F : numbers[last];
  float best = 0;
  int32_t expert = -1;
  for (auto e = static_cast<int32_t>(lane()); e < count; e += 32) {
    const float number = numbers[e];
    const bool follows = last < 0 ? number == number : is_before(bound, last, number, e);
    if (!follows || (expert >= 0 && !(number > best))) continue;
    best = number;
    expert = e;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const float number = __shfl_xor_sync(0xffffffff, best, distance);
    const int32_t other = __shfl_xor_sync(0xffffffff, expert, distance);
    if (other < 0 || (expert >= 0 && !is_before(number, other, best, expert))) continue;
    best = number;
    expert = other;
  }
  return expert;
}

// RETURNS the sum of the `count` largest of a group's numbers; one lane calls it.
__device__ inline float sum_of_largest(const float* numbers, int64_t size, int64_t count) {
  float sum = 0;
  int32_t last = -1;
  for (int64_t j = 0; j < count; ++j) {
    int32_t next = -1;
    for (int32_t e = 0; e < size; ++e) {
      const bool follows = last < 0 || is_before(numbers[last], last, numbers[e], e);
      if (follows && (next < 0 || numbers[e] > numbers[next])) next = e;
    }
    last = next;
    if (last >= 0) sum += numbers[last];
  }
  return sum;
}

// Lowers the numbers of experts in groups that are not chosen to minus infinity. `chosen`: experts of a row. `sums`:
// the warp's memory for a sum of each group.
__device__ inline void leave_groups(const RouterRule& rule, int64_t chosen, float* numbers, int64_t count,
                                    float* sums) {
  const int64_t size = count / rule.groups;
  for (int64_t g = lane(); g < rule.groups; g += 32)
    sums[g] = sum_of_largest(numbers + g * size, size, chosen / rule.group_top_k);
  __syncwarp();
  for (int64_t g = lane(); g < rule.groups; g += 32) {
    int64_t before = 0;
    for (int64_t i = 0; i < rule.groups; ++i)
      before += is_before(sums[i], static_cast<int32_t>(i), sums[g], static_cast<int32_t>(g)) ? 1 : 0;
    for (int64_t e = 0; before >= rule.group_top_k && e < size; ++e) numbers[g * size + e] = -infinity;
  }
  __syncwarp();
}

// The sum of the scores of a row's experts, by which weights are divided; 1 without `renormalise`.
__device__ inline float divisor_of(const RouterRule& rule, const RowScores& scores, const float* logits,
                                   const int32_t* experts, int64_t k) {
  if (!rule.renormalise) return 1;
  float sum = scores.by_sigmoid ? 1e-20F : 0.0F;
  for (int64_t j = 0; j < k; ++j) sum += scores.score(logits[experts[j]]);
  return sum;
}

// Runs of rows, cut into chunks that a block computes.
struct Chunks {
  int64_t own_rows, per_run, count;

  Chunks(const RouterRule& rule, int64_t rows)
      : own_rows(rule.own_rows()),
        per_run((rule.own_rows() + gpu_routing_chunk - 1) / gpu_routing_chunk),
        count(gpu_routing_chunks(rule, rows)) {}

  __device__ int64_t first_row(int64_t chunk) const {
    return chunk / per_run * own_rows + chunk % per_run * gpu_routing_chunk;
  }
  __device__ int64_t rows_of(int64_t chunk) const {
    const int64_t left = own_rows - chunk % per_run * gpu_routing_chunk;
    return left < gpu_routing_chunk ? left : gpu_routing_chunk;
  }
};

}  // namespace gptrain::cuda::router
