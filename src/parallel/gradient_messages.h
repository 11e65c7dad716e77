// Messages in which ranks exchange compressed gradients: their parts, their bytes, and the errors of their codes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/gradient_sums.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// A tensor's elements within its unit, and the offset of their errors.
struct CodedTensor {
  int64_t tensor;        // index in the spec
  int64_t first, count;  // elements from the unit's start
  int64_t residual;      // offset in a buffer of all errors, in elements
};

// The layout of a unit's messages: each kind of sums derives one (parallel/gradient_sum.h).
class UnitLayout {
 public:
  virtual ~UnitLayout() = default;
  // Returns the bytes of a sum's buffer. `cuts_state`: each rank needs its piece only.
  virtual int64_t buffer_bytes(bool cuts_state) const = 0;
  // Returns the number of phases of a sum.
  virtual int phases(bool cuts_state) const = 0;
};

// The messages of a unit.
struct UnitMessages {
  std::shared_ptr<const UnitLayout> layout = {};  // null: the unit is summed as it is
  int64_t first_residual = 0;                     // offset of the unit's errors, and behind them of its factors
  int64_t num_residuals = 0;                      // number of these elements

  // Returns false if the unit has no coded elements and is summed as it is.
  bool is_coded() const { return layout != nullptr; }
  int64_t buffer_bytes(bool cuts_state) const { return is_coded() ? layout->buffer_bytes(cuts_state) : 0; }
  // Returns the layout; an empty one if the unit is summed otherwise.
  template <typename Layout>
  const Layout& as() const {
    static const Layout none{};
    const auto* const found = dynamic_cast<const Layout*>(layout.get());
    return found == nullptr ? none : *found;
  }
};

// The elements of one tensor whose errors a rank keeps: a box of the global tensor, contiguous in the buffer of errors.
// Or a right factor of the tensor, which all ranks keep alike.
struct ResidualBox {
  int64_t tensor;  // index in the spec
  std::vector<int64_t> offset, shape;
  int64_t first;  // offset in the buffer of errors
  bool is_factor = false;

  int64_t count() const { return element_count(shape); }
};

struct GradientMessages {
  GradientCodec kind = GradientCodec::none;
  int bits = 8;  // bits of an element's code
  // This rank among those that sum their gradients as they are, before the sum of their shares is compressed: the ranks
  // of a node with CompressedSums::nodes, else each rank by itself.
  ReplicaRank in_node = {};
  std::vector<UnitMessages> units = {};
  std::vector<ResidualBox> boxes = {};
  int64_t num_residuals = 0;  // elements of a buffer of errors and factors

  // Returns true if the rank's units are not all summed as they are.
  bool any_coded() const;
  // Returns the number of phases of a coded unit's sums; 1 if there is none. `cuts_state`: each rank needs its piece
  // only.
  int phases(bool cuts_state) const;
  // Returns the bytes of a buffer of errors and factors.
  int64_t residual_bytes() const { return num_residuals * dtype_bytes(DType::f32); }
  // Returns the bytes of a copy of `boxes`, with or without factors, each from a multiple of memory_alignment on.
  int64_t snapshot_bytes(bool with_factors) const;
};

}  // namespace gptrain::parallel
