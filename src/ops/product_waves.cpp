#include "ops/product_waves.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gptrain::inline ops {
namespace {

// Tile sizes of libraries' kernels for 16-bit factors. Large tiles reuse more of the data that they read.
struct Tile {
  double rows, cols;
  double efficiency;  // share of the full rate
};
constexpr std::array library_tiles{Tile{256, 128, 1.0}, Tile{128, 256, 1.0}, Tile{128, 128, 0.95},
                                   Tile{128, 64, 0.8},  Tile{64, 128, 0.8},  Tile{64, 64, 0.6}};
constexpr std::array<double, 5> depth_parts{1, 2, 4, 8, 16};
constexpr double least_part = 512;  // smallest depth of a part of a split product

double ceil_of(double a, double b) { return std::ceil(a / b); }

}  // namespace

double wave_seconds(const ProductRates& rates, const ProductShape& products, double bytes) {
  const auto m = static_cast<double>(products.m), n = static_cast<double>(products.n);
  const auto k = static_cast<double>(products.k), count = static_cast<double>(products.count);
  const double of_multiprocessor = rates.flops_per_second / rates.multiprocessors;
  double best = INFINITY;
  for (const Tile& tile : library_tiles) {
    const double num_tiles = ceil_of(m, tile.rows) * ceil_of(n, tile.cols) * count;
    for (const double parts : depth_parts) {
      if (parts > 1 && k / parts < least_part) break;
      const double waves = ceil_of(num_tiles * parts, rates.multiprocessors);
      const double of_tile =
          2 * tile.rows * tile.cols * (k / parts + rates.fill_depth) / (of_multiprocessor * tile.efficiency);
      // Parts are written in f32 and read again.
      const double sums = parts > 1 ? rates.memory_seconds(2 * 4 * parts * m * n * count) : 0;
      best = std::min(best, waves * of_tile + sums);
    }
  }
  return std::max(best, rates.memory_seconds(bytes));
}

}  // namespace gptrain::ops
