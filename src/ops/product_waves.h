// Time of matrix products on a GPU, whose multiprocessors compute the tiles of an output in waves.
#pragma once

#include "base/event.h"

namespace gptrain::inline ops {

struct ProductRates {
  double flops_per_second;  // rate of large products
  double multiprocessors;
  double fill_depth;        // filling and emptying a tile costs as much as this depth of its product
  double bytes_per_second;  // memory rate of large ops
  double half_rate_bytes;   // bytes moved by an op that reaches half of bytes_per_second

  // RETURNS the seconds of one kernel that moves `bytes`, without its launch.
  double memory_seconds(double bytes) const { return (bytes + half_rate_bytes) / bytes_per_second; }
};

// RETURNS the seconds of `count` products of [m, k] and [k, n]. The outputs are cut into tiles, which the
// multiprocessors compute in waves. A tile costs its depth plus fill_depth at the full rate, even if part of it lies
// outside the output. The result is the minimum over tile sizes and over splits of the depth (whose f32 partial sums
// cost memory traffic), but at least memory_seconds(bytes).
double wave_seconds(const ProductRates& rates, const ProductShape& products, double bytes);

}  // namespace gptrain::ops
