// How long matrix products take on a GPU, whose multiprocessors take the tiles of an output in waves.
#pragma once

#include "base/event.h"

namespace gptrain {

struct ProductRates {
  double flops_per_second;  // that large products reach
  double multiprocessors;
  double fill_depth;        // filling and emptying a tile costs as much as this depth of its product
  double bytes_per_second;  // that large ops reach of the memory's rate
  double half_rate_bytes;   // an op that moves so much reaches half of that

  // One kernel that moves so many bytes, its launch not counted.
  double memory_seconds(double bytes) const { return (bytes + half_rate_bytes) / bytes_per_second; }
};

// `count` products of [m, k] and [k, n]. The outputs are cut into tiles, which the multiprocessors take in waves; a
// tile takes its depth and fill_depth at the full rate, however much of it lies outside of the output. Of the
// tiles' sizes, and of the numbers of parts of the depth, which are added up in f32, the quickest counts. No product is
// quicker than memory_seconds of `bytes`.
double wave_seconds(const ProductRates& rates, const ProductShape& products, double bytes);

}  // namespace gptrain
