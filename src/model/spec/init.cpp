#include "model/spec/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptrain::inline spec {
namespace {

// RETURNS the FNV-1a hash of a name.
uint64_t name_hash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::array<float, 4> four_normals(PhiloxKey key, uint64_t group) {
  const auto words = philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 0, 0});
  std::array<float, 4> normals;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const float radius = std::sqrt(-2.0F * std::log(uniform_open_closed(words[pair])));
    const float angle = 2.0F * std::numbers::pi_v<float> * uniform_open_closed(words[pair + 1]);
    normals[pair] = radius * std::cos(angle);
    normals[pair + 1] = radius * std::sin(angle);
  }
  return normals;
}

}  // namespace

PhiloxKey tensor_key(const TensorSpec& tensor, uint64_t seed, RandomUse use) {
  const uint64_t hash = name_hash(tensor.name);
  return random_key(seed, use, static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32));
}

void initial_values(const TensorSpec& tensor, uint64_t seed, int64_t first, int64_t count, float* out,
                    int num_threads) {
  if (tensor.init != Init::normal) {
    std::fill_n(out, count, tensor.init == Init::constant ? static_cast<float>(tensor.init_scale) : 0.0F);
    return;
  }
  const PhiloxKey key = tensor_key(tensor, seed, RandomUse::initial_weights);
  const auto std_dev = static_cast<float>(tensor.init_scale);
  const int64_t first_group = first / 4;
  const int64_t last_group = (first + count + 3) / 4;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t group = first_group; group < last_group; ++group) {
    const auto normals = four_normals(key, static_cast<uint64_t>(group));
    for (int64_t lane = 0; lane < 4; ++lane) {
      const int64_t element = 4 * group + lane;
      if (element >= first && element < first + count)
        out[element - first] = std_dev * normals[static_cast<size_t>(lane)];
    }
  }
}

}  // namespace gptrain::spec
