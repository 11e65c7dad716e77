// Numbers that the ops of a step collect beside its loss: a declared list, whose values lie in one block of device
// memory and on which all ranks agree at the step's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/kinds.h"
#include "base/matrix.h"
#include "comm/reduce_op.h"

namespace gptrain::inline model {

// sum: f64 values that begin a step at 0, added up over the world. Layers add to them in a unit's first pass over a
// micro-batch, and where the ranks of a tensor group compute the same numbers, the first of them alone does.
// largest: f32 values that begin a step at minus infinity, of which the world's maximum is taken. Layers may raise them
// in any pass.
enum class StatisticKind : uint8_t { sum, largest };

struct Statistic {
  std::string name;
  StatisticKind kind;
  int64_t count = 1;  // number of values
};

// Largest attention score of each query head of the model, in the order of layers (optim/qk_clip.h).
constexpr std::string_view head_scores_statistic = "head_scores";

// Statistics of each layer with experts: the tokens of each expert, then the balance loss, the squared log-sum-exp and
// the entropy of the router, summed over sequences and tokens (RouteTokens).
constexpr std::string_view routing_statistic = "routing";

// Amaxes of FP8 tensors (precision.amax_history): inputs of linears by layer and LinearSite, then gradients of outputs.
constexpr std::string_view fp8_amax_statistic = "fp8_amax";
constexpr int64_t num_fp8_amaxes(int64_t num_layers) { return 2 * num_layers * std::ssize(linear_site_names); }

// Places of the values of declared statistics: all sums one after the other, then each `largest`.
class StatisticsLayout {
 public:
  StatisticsLayout() = default;
  explicit StatisticsLayout(std::vector<Statistic> statistics);

  int64_t bytes() const { return bytes_; }
  int64_t num_sums() const { return num_sums_; }
  // RETURNS a statistic's values in a block of bytes(); not given if it is not declared.
  Matrix find(std::string_view name, std::byte* block) const;
  bool has_sum(std::string_view name) const;
  // RETURNS a sum's part of the values of all sums; empty if it is not declared.
  std::span<const double> part_of(std::string_view name, std::span<const double> sums) const;
  // RETURNS the block as a step begins with it, without the padding after the last value.
  std::vector<std::byte> initial_values() const;

  struct Reduction {
    Matrix values;
    ReduceOp op;
  };
  // RETURNS the reductions of a block over the world: the sums together, then each `largest`.
  std::vector<Reduction> reductions(std::byte* block) const;

 private:
  struct Entry {
    Statistic statistic;
    int64_t offset;  // bytes from the start of the block
  };
  const Entry* entry_of(std::string_view name) const;

  std::vector<Entry> entries_;
  int64_t num_sums_ = 0, bytes_ = 0;
};

}  // namespace gptrain::model
