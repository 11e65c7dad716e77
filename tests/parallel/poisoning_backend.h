// Memory that shows what was written.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace gptrain::testing {

constexpr unsigned char poison = 0xA5;

// Memory comes poisoned and is remembered.
class PoisoningBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    auto memory = inner_.allocate(bytes);
    if (memory->bytes() > 0) std::memset(memory->data(), poison, static_cast<size_t>(memory->bytes()));
    arenas.push_back(memory.get());
    return memory;
  }

  std::vector<DeviceMemory*> arenas;  // in the order of MemoryClass
};

// Runs `body` on every rank, with its micro-batches, on such a backend of its own.
inline void on_poisoned_ranks(
    const RunConfig& config, int64_t world_size,
    const std::function<void(RankContext&, RandomBatches&, const PoisoningBackend&)>& body) {
  std::vector<PoisoningBackend*> backends(static_cast<size_t>(world_size));
  Wrapping wrapping;
  wrapping.backend = [&](int64_t rank, Backend& inner) {
    auto backend = std::make_unique<PoisoningBackend>(inner);
    backends[static_cast<size_t>(rank)] = backend.get();
    return backend;
  };
  on_ranks(config, world_size, nullptr, wrapping, [&](RankContext& rank) {
    RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
    body(rank, batches, *backends[static_cast<size_t>(rank.groups.rank())]);
  });
}

// Bytes up to the last one that was written, rounded up to the alignment of arenas' contents.
inline int64_t touched_bytes(const DeviceMemory& memory) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
  int64_t last = memory.bytes();
  while (last > 0 && bytes[last - 1] == poison) --last;
  return align_up(last);
}

}  // namespace gptrain::testing
