// Sums of compressed gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradient_sum.h"

namespace gptrain::inline parallel {

// Elements of a unit that lie together in a message: coded (ops/block_codes.h), or as they are, in f32.
struct MessageRun {
  int64_t first;     // elements from the unit's start
  int64_t count;     // number of elements
  int64_t residual;  // coded: offset of the elements' errors in a buffer of all errors, in elements, in this rank's
                     // share (UnitPieces), any number from 0 on in others; -1: not coded
  int64_t scales;    // coded: bytes from the message's start to the scales
  int64_t values;    // bytes from the message's start to the codes or the elements

  bool is_coded() const { return residual >= 0; }
};

// The message with one piece of a unit.
struct PieceMessage {
  std::vector<MessageRun> runs;
  int64_t bytes = 0;
};

// The messages of a unit, one for each piece. A rank sends those of its share of the unit: all pieces, or with
// CompressedSums::nodes those that ranks with its place on all nodes have. A sum's buffer has the messages that the
// rank sends, then those that it receives: of its share, and if it needs the whole sum in the end of all pieces.
struct UnitPieces final : UnitLayout {
  std::vector<PieceMessage> pieces;
  int64_t stride = 0;  // bytes from one message to the next in a buffer, at least those of the longest
  int64_t first_of_share = 0, num_of_share = 0;  // pieces

  bool sums_in_node() const { return num_of_share < std::ssize(pieces); }
  int64_t received_messages(bool cuts_state) const { return cuts_state ? num_of_share : std::ssize(pieces); }
  int64_t buffer_bytes(bool cuts_state) const override {
    return (num_of_share + received_messages(cuts_state)) * stride;
  }
  int phases(bool cuts_state) const override { return (sums_in_node() ? 1 : 0) + (cuts_state ? 1 : 2); }
};

// Codes of 8 or 4 bits, and signs.
extern const GradientSum coded_sum, signs_sum;

// Sums of large matrices' gradients in 8, 4 or 1 bits (ops/block_codes.h), of all others in f32. Every rank adds the
// errors of earlier steps to its gradients, codes them, and sends each other rank the codes of that rank's piece. The
// receiver decodes them and adds them up in rank order, in f32. With ZeRO 0 it codes its sum again, and all ranks
// decode the sums of all. So a step leaves the sum of all ranks' gradients, less the errors that the ranks keep:
//   sum over steps of the decoded sums = sum over steps of all gradients - sum over ranks of the errors now.
// A skipped step leaves the errors as they were.
//
// With CompressedSums::nodes the ranks of a node first sum their gradients in f32, in rank order, each rank a share of
// the unit. The ranks with the same share then sum these shares between nodes in codes, and keep the errors of their
// share. With ZeRO 0 the ranks of a node gather the codes of the sums.
//
// With momenta (1-bit Adam, arXiv 2102.02888) the ranks sum their shares of the next first moment m of units with coded
// elements: beta1 m / ranks + (1 - beta1) gradients. With server_errors, the error of a coded sum stays with the rank
// that coded it, and is added to its next sum of the same elements. REQUIRES: ZeRO 0 and kept errors with momenta or
// server_errors.
std::unique_ptr<GradientReducer> make_compressed_reducer(const ReductionContext& context,
                                                         const GradientCompression& compression);

// Returns the reducer of steps in which ranks train alone (zero-one-adam). Units with coded elements keep the rank's
// own gradients, of a loss that is the mean over its part of the batch. All others get the mean of the ranks'
// gradients.
std::unique_ptr<GradientReducer> make_lone_reducer(const ReductionContext& context, const GradientMessages& messages);

}  // namespace gptrain::parallel
