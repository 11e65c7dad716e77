#include "model/spec/tensor_key.h"

#include <string>

namespace gptrain::inline spec {
namespace {

// RETURNS the FNV-1a hash of a name.
uint64_t name_hash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

PhiloxKey tensor_key(const TensorSpec& tensor, uint64_t seed, RandomUse use) {
  const uint64_t hash = name_hash(tensor.name);
  return random_key(seed, use, static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32));
}

}  // namespace gptrain::spec
