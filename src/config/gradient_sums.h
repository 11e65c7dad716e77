// The kinds of compressed sums of gradients, one row each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/enum_array.h"

namespace gptrain::inline config {

// How gradients are compressed on their way between data ranks. Signs are those of momenta (optimizer.type onebit-adam
// and zero-one-adam): they come last, as no kind of comm.compression.
enum class GradientCodec : uint8_t { none, int8, int4, powersgd, topk, sketch, signs };

// Facts about a kind that rules, help, plans and checkpoints read. Its messages are in src/parallel.
struct GradientSumKind {
  std::string_view name;
  std::string_view help = {};
  int bits = 8;                     // bits of an element's code
  int32_t rank = 0;                 // default of the key `rank`; 0: the kind has no such key
  std::string_view rank_help = {};  // with a rank
  double share = 0;                 // default of the key `share`; 0: the kind has no such key
  std::string_view share_help = {};
  std::string_view lost = {};       // loss of a run without kept errors; empty: it may do without
  int64_t most_zero = 3;            // largest ZeRO stage
  bool has_whole_matrices = false;  // needs parallel.tensor = 1
  bool has_factors = false;         // keeps a factor of each matrix from step to step
  bool sums_shares = false;         // can sum a share of a unit: any run of its elements
  // Returns the share from which on a rank sends as much as in plain sums; null: the kind has no share.
  double (*most_share)(int32_t rank, int64_t zero, int64_t data_ranks) = nullptr;
};

// Part of the elements that a rank sends in a plain sum, over that of an all-reduce: with ZeRO 1 and above each rank
// needs a piece of the sum only.
constexpr double part_of_all_reduce(int64_t zero) { return zero == 0 ? 1.0 : 0.5; }

constexpr EnumArray<GradientCodec, GradientSumKind, 7> gradient_sum_kinds = {{{
    {.name = "none"},
    {.name = "int8", .help = "codes of 8 bits, with a scale for every 128 elements", .sums_shares = true},
    {.name = "int4", .help = "codes of 4 bits, likewise", .bits = 4, .sums_shares = true},
    {.name = "powersgd",
     .help = "two factors of low rank for each matrix",
     .rank = 2,
     .rank_help = "columns of each factor",
     .lost = "most of each gradient would be lost",
     .most_zero = 1,
     .has_whole_matrices = true,
     .has_factors = true},
    // A rank sends index and value of each element to all others, where a plain sum sends an equal part of all elements
    // to each, and with ZeRO 0 as much back.
    {.name = "topk",
     .help = "the largest elements of each matrix, with their indices",
     .share = 0.01,
     .share_help = "part of a matrix' elements that each rank sends",
     .lost = "small elements would never be sent",
     .most_zero = 1,
     .most_share = [](int32_t, int64_t zero,
                      int64_t data_ranks) { return part_of_all_reduce(zero) / static_cast<double>(data_ranks); }},
    {.name = "sketch",
     .help = "a sketch of each matrix, whose sum tells which elements to sum",
     .rank = 5,
     .rank_help = "rows of a sketch, by default 5, each with two columns for every element that is summed",
     .share = 0.01,
     .share_help = "part of a matrix' elements that is summed",
     .lost = "all other elements would be lost",
     .most_zero = 1,
     .most_share = [](int32_t rank, int64_t zero, int64_t) { return part_of_all_reduce(zero) / (2.0 * rank + 1); }},
    {.name = "signs", .bits = 1, .most_zero = 0},
}}};

constexpr size_t num_gradient_codecs = gradient_sum_kinds.size();
constexpr EnumArray<GradientCodec, std::string_view, num_gradient_codecs> gradient_codec_names = [] {
  EnumArray<GradientCodec, std::string_view, num_gradient_codecs> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = gradient_sum_kinds[i].name;
  return names;
}();

// Sums that are compressed: over all data ranks, or only those between nodes, of which each has been summed as it is.
enum class CompressedSums : uint8_t { all, nodes };
constexpr std::array<std::string_view, 2> compressed_sums_names = {"all", "nodes"};

// Compression of gradients on their way between data ranks.
struct CompressionConfig {
  GradientCodec kind = GradientCodec::none;
  bool error = true;       // the error that compression makes is added to the next gradients
  int32_t rank = 0;        // GradientSumKind::rank
  double share = 0;        // GradientSumKind::share
  bool alternate = false;  // a step sums one of the two factors only; the next step sums the other one
  CompressedSums between = CompressedSums::all;
  int64_t start_step = 0;         // steps at the run's start that sum gradients as they are
  int64_t min_elements = 65'536;  // matrices with fewer elements are summed as they are

  bool is_on() const { return kind != GradientCodec::none; }
  bool is_between_nodes() const { return between == CompressedSums::nodes; }
  const GradientSumKind& facts() const { return gradient_sum_kinds[kind]; }
};

}  // namespace gptrain::config
