// Memory that shows which bytes were written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace gptrain::testing {

constexpr unsigned char poison = 0xA5;

// Poisons allocated memory and remembers it.
class PoisoningBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    auto memory = inner_.allocate(bytes);
    const std::vector<unsigned char> poisoned(static_cast<size_t>(memory->bytes()), poison);
    if (memory->bytes() > 0) inner_.upload(memory->data(), poisoned.data(), memory->bytes());
    arenas.push_back(memory.get());
    return memory;
  }

  // Returns the bytes up to the last written one, rounded up to the alignment of arena contents.
  int64_t touched_bytes(const DeviceMemory& memory) const {
    std::vector<unsigned char> bytes(static_cast<size_t>(memory.bytes()));
    if (memory.bytes() > 0) inner_.download(bytes.data(), memory.data(), memory.bytes());
    const auto last = std::find_if(bytes.rbegin(), bytes.rend(), [](unsigned char byte) { return byte != poison; });
    return align_up(bytes.rend() - last);
  }

  std::vector<DeviceMemory*> arenas;  // in the order of MemoryClass
};

// Backends by rank. The pointers are valid while the ranks run.
using PoisoningBackends = std::vector<PoisoningBackend*>;

// Gives every rank a poisoning backend of its own.
inline std::shared_ptr<const PoisoningBackends> poison_memory(Wrapping& wrapping, int64_t world_size) {
  const auto backends = std::make_shared<PoisoningBackends>(static_cast<size_t>(world_size));
  wrapping.backend = [backends](int64_t rank, Backend& inner) {
    auto backend = std::make_unique<PoisoningBackend>(inner);
    (*backends)[static_cast<size_t>(rank)] = backend.get();
    return backend;
  };
  return backends;
}

// Runs `body` on every rank, with its micro-batches, on its own poisoning backend.
inline void on_poisoned_ranks(const RunConfig& config, int64_t world_size,
                              const std::function<void(RankContext&, RandomBatches&, const PoisoningBackend&)>& body) {
  Wrapping wrapping;
  const auto backends = poison_memory(wrapping, world_size);
  on_ranks(config, world_size, nullptr, wrapping, [&](RankContext& rank) {
    RandomBatches batches(config, 0, rank.groups);
    body(rank, batches, *(*backends)[static_cast<size_t>(rank.groups.rank())]);
  });
}

}  // namespace gptrain::testing
