// Memory of a chain with given choices, computed by running the passes of a micro-batch action by action.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule/recompute_chain.h"

namespace gptrain::testing {

// The actions of one micro-batch, and the lifetimes of their outputs.
class Play {
 public:
  Play(const Chain& chain, const UnitChoices& choices)
      : chain_(chain), choices_(choices), places_(chain.units.size()) {}

  int64_t peak() {
    const auto n = static_cast<int32_t>(chain_.units.size());
    for (int32_t unit = 0; unit < n; ++unit) {
      forward(unit, 0);
      offload(unit);
    }
    const size_t forwards = beside_.size();
    for (int32_t unit = n - 1; unit >= 0; --unit) backward(unit);
    std::vector<int64_t> alive(beside_.size() + 1, 0);
    int64_t held_bytes = 0;
    for (const BlockLifetime& block : held_) {
      alive[block.first] += block.bytes;
      alive[block.last + 1] -= block.bytes;
      if (block.first < forwards && block.last >= forwards) held_bytes += block.bytes;
    }
    int64_t most = 0;
    int64_t now = 0;
    for (size_t action = 0; action < beside_.size(); ++action) {
      now += alive[action];
      most = std::max(most, now + beside_[action]);
    }
    return most + (chain_.in_flight - 1) * held_bytes;
  }

 private:
  struct BlockLifetime {
    int64_t bytes;
    size_t first, last;  // actions
    bool away = false;   // on the host until it is used
  };
  // For a unit, the positions in held_ of the outputs of its last pass; -1: none.
  struct BlockLifetimes {
    int64_t output = -1, saved = -1, part = -1;
  };

  void begin(int64_t bytes_beside) { beside_.push_back(bytes_beside); }
  void leave(int64_t& block, int64_t bytes) {
    block = static_cast<int64_t>(held_.size());
    held_.push_back({bytes, beside_.size() - 1, beside_.size() - 1});
  }
  void use(int64_t& block) {
    if (block < 0) return;
    if (held_[static_cast<size_t>(block)].away) leave(block, held_[static_cast<size_t>(block)].bytes);
    held_[static_cast<size_t>(block)].last = beside_.size() - 1;
  }
  void use_input(int32_t unit) {
    if (unit > 0) use(places_[static_cast<size_t>(unit) - 1].output);
  }

  void offload(int32_t unit) {
    const OffloadedPart part = choices_[static_cast<size_t>(unit)].offload.part;
    const auto send = [this](int64_t block) {
      if (block >= 0) held_[static_cast<size_t>(block)].away = true;
    };
    if (part != OffloadedPart::none && unit > 0) send(places_[static_cast<size_t>(unit) - 1].output);
    if (part != OffloadedPart::record) return;
    send(places_[static_cast<size_t>(unit)].saved);
    send(places_[static_cast<size_t>(unit)].part);
  }

  void forward(int32_t unit, int64_t bytes_beside) {
    const auto index = static_cast<size_t>(unit);
    const ChainUnit& u = chain_.units[index];
    const int64_t left = choices_[index].saves_part ? u.part_bytes + u.rest_bytes : u.saved_bytes;
    begin(bytes_beside + u.written_bytes() - left);
    use_input(unit);
    leave(places_[index].output, u.output_bytes);
    leave_saved(unit);
    if (choices_[index].saves_part) leave(places_[index].part, u.part_bytes);
  }

  void leave_saved(int32_t unit) {
    const auto index = static_cast<size_t>(unit);
    const ChainUnit& u = chain_.units[index];
    leave(places_[index].saved, choices_[index].saves_part ? u.rest_bytes : u.saved_bytes);
  }

  void backward(int32_t unit) {
    const auto index = static_cast<size_t>(unit);
    if (const int32_t first = choices_[index].recompute_from; first >= 0) {
      for (int32_t recomputed = first; recomputed < unit; ++recomputed) forward(recomputed, chain_.gradient_bytes);
      begin(chain_.gradient_bytes);
      use_input(unit);
      use(places_[index].part);
      leave_saved(unit);
    }
    begin(chain_.units[index].backward_bytes);
    use_input(unit);
    use(places_[index].saved);
    use(places_[index].part);
  }

  const Chain& chain_;
  const UnitChoices& choices_;
  std::vector<BlockLifetimes> places_;  // by unit
  std::vector<BlockLifetime> held_;
  std::vector<int64_t> beside_;  // by action: bytes that exist during it only
};

// Returns the peak of live bytes, if copies take no time. For other micro-batches in flight, the bytes at the end of
// their forward passes count.
inline int64_t peak_bytes(const Chain& chain, const UnitChoices& choices) { return Play(chain, choices).peak(); }

// Returns the host bytes of a unit's offloaded part.
inline int64_t offloaded_bytes(const Chain& chain, const UnitChoices& choices, size_t unit) {
  const ChainUnit& u = chain.units[unit];
  const OffloadedPart part = choices[unit].offload.part;
  if (part == OffloadedPart::none) return 0;
  const int64_t input = unit > 0 ? chain.units[unit - 1].output_bytes : chain.input_bytes;
  if (part == OffloadedPart::input) return input;
  return input + (choices[unit].saves_part ? u.part_bytes : u.saved_bytes);
}

}  // namespace gptrain::testing
