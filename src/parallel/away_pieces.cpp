#include "parallel/away_pieces.h"

#include <fmt/format.h>
#include <string_view>

#include "base/enum_array.h"

namespace gptrain::inline parallel {

std::vector<StoredPiece> stored_pieces(const ParameterStore& parameters) {
  constexpr EnumArray<AwayPart, std::string_view, num_away_parts> names = {"optimizer state", "weights", "gradients"};
  std::vector<StoredPiece> pieces;
  for (size_t part = 0; part < num_away_parts; ++part) {
    for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit)
      pieces.push_back({fmt::format("{} of unit {}", names[part], unit),
                        parameters.state_layout().part_bytes(static_cast<AwayPart>(part), unit)});
  }
  return pieces;
}

size_t num_saved_pieces(const ParameterStore& parameters) {
  // The last part that checkpoints have.
  const AwayPart last = parameters.sharding().updates_weights() ? AwayPart::weights : AwayPart::state;
  return stored_piece(parameters, last, parameters.num_parameter_units());
}

}  // namespace gptrain::parallel
