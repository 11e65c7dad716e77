// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
//
// Every random number of a run is a pure function of global indices: the key is made of the seed and the number's use,
// the counter of the element's indices. No number depends on earlier draws, so the layout, the thread count and
// resuming change none.
#pragma once

#include <array>
#include <cstdint>

namespace gptrain::inline base {

struct PhiloxKey {
  uint32_t k0 = 0;
  uint32_t k1 = 0;
};

// Ten rounds: four 32-bit words for one counter.
constexpr std::array<uint32_t, 4> philox(PhiloxKey key, std::array<uint32_t, 4> c) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.k1, static_cast<uint32_t>(p0)};
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  return c;
}

// Uses of random numbers, with the indices that form the counter. Never renumber them: the values determine the results
// of a run.
enum class RandomUse : uint32_t {
  initial_weights = 1,          // (tensor, element)
  embedding_dropout = 2,        // (sample, token, feature)
  attention_dropout = 3,        // (sample, query, key), one key per layer and head
  branch_dropout = 4,           // (sample, token, feature), one key per layer and site
  data_order = 5,               // (epoch or cycle, source)
  sampling = 6,                 // (token), text generation
  update_rounding = 7,          // (tensor, element, update)
  linear_projection = 8,        // (sample, token, row of the projection), one key per layer and linear
  gradient_rounding = 9,        // (tensor, element, update, sum)
  tied_gradient_rounding = 10,  // the same, on the last stage where two pipeline stages hold a tied table
  router_jitter = 11,           // (sample, token, feature), one key per layer
};

// Returns the key for one use in one layer and site: the same on every rank and device. Keys of different inputs are
// unrelated.
constexpr PhiloxKey random_key(uint64_t seed, RandomUse use, uint32_t layer = 0, uint32_t site = 0) {
  const auto words = philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                            {static_cast<uint32_t>(use), layer, site, 0x67707472U});
  return {words[0], words[1]};
}

// Uniform in (0, 1], 24 bits.
constexpr float uniform_open_closed(uint32_t word) { return static_cast<float>((word >> 8) + 1) * 0x1p-24F; }

}  // namespace gptrain::base
