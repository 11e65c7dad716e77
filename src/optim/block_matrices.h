// Work on whole matrices of blocks: assigns matrices to ranks, gathers their parts and returns them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "optim/optimizer.h"

namespace gptrain::inline optim {

// A weight of a block, or one of its sections: queries, keys, values, gate and up are separate matrices.
struct BlockMatrix {
  int64_t tensor;
  int64_t first_row;  // first row in the tensor
  int64_t rows, cols;

  int64_t count() const { return rows * cols; }
};

// RETURNS the matrices of the units that the layout holds, in the order of the tensors.
std::vector<BlockMatrix> block_matrices(const ModelSpec& spec, const ParameterLayout& layout);

// A rank's part of a block matrix: a contiguous range of a box.
struct MatrixPart {
  int64_t row = 0, col = 0, cols = 0;  // the box in the matrix: corner and width
  int64_t first = 0, count = 0;        // the rank's range of the box's elements in row-major order; count 0: no part
  int64_t in_unit = 0;                 // offset of the range in the rank's unit, in elements
  bool owned = false;                  // no lower tensor rank holds the same elements
};

// Gathers matrices in rounds, at most one per rank and round. Matrices are sorted by work, so that a round's matrices
// are of similar size; the order of ranks alternates between rounds, which balances the work.
class MatrixExchange {
 public:
  // Borrows the context's references. Plans all rounds, without a transfer.
  explicit MatrixExchange(const UpdateContext& context);

  int64_t num_rounds() const { return std::ssize(rounds_); }
  // RETURN the elements of the largest matrix, and the largest square of a matrix' smaller side, so that a caller can
  // take memory for any round. Equal on all ranks of the stage.
  int64_t most_elements() const { return most_elements_; }
  int64_t most_square() const { return most_square_; }
  // RETURNS whether matrices are gathered from several ranks. If not, `play` uses them in the gradients' memory, where
  // they are contiguous.
  bool gathers() const { return group_ != nullptr; }

  // Gathers this rank's matrix of the round from the summed gradients of the stage's ranks, calls work(matrix, values)
  // with values [rows, cols] f32, and writes the values back into all ranks' gradients. Does not call `work` if the
  // rank has no matrix, but still takes part in the transfers. `whole` and `parts` are device memory for most_elements
  // f32, used only if gathers(); `work` may use `parts`. REQUIRES: called by all ranks of the stage for rounds 0 to
  // num_rounds() - 1, in order (collective, on the lane of gradients).
  void play(int64_t round, std::byte* whole, std::byte* parts,
            const std::function<void(const BlockMatrix&, const Matrix&)>& work);

 private:
  struct GatheredPart {
    MatrixPart part;
    int64_t at;  // elements from the start of `parts`
  };
  // Transfers of a round: one range for each peer, in the gradients or in `parts`.
  struct Round {
    int64_t own = -1;                                // index of this rank's matrix in matrices_; -1: none
    std::vector<PeerPart> sent, received;            // transfers to the owners
    std::vector<PeerPart> sent_back, received_back;  // transfers from the owners
    std::vector<GatheredPart> gathered, returned;    // parts of the own matrix
  };

  // A rank of the stage.
  struct Holder {
    int64_t tensor;       // rank on the tensor axis
    int64_t data;         // number among the ranks with the same parameters except for experts (RankGroups::data_rank)
    ExpertRank experts;   // rank among those that share experts
    int64_t expert_data;  // number among the ranks with the same experts
  };
  std::vector<Holder> holders_of_stage() const;
  // RETURNS whether ranks share the experts of the tensor.
  bool is_spread(int64_t tensor) const;
  // RETURNS the holder's number among the ranks with the same part of the matrix.
  int64_t replica(const BlockMatrix& matrix, const Holder& holder) const {
    return is_spread(matrix.tensor) ? holder.expert_data : holder.data;
  }
  TensorShard shard_on(int64_t tensor, const Holder& holder) const;
  // RETURNS the tensor that lies in this rank's buffers where `tensor` lies in the holder's.
  size_t own_like(int64_t tensor, const Holder& holder) const;
  MatrixPart part_of(const BlockMatrix& matrix, const Holder& holder) const;
  int64_t in_gradients(const BlockMatrix& matrix, const MatrixPart& part) const;
  void add_own(Round& round) const;
  void copy_parts(const BlockMatrix& matrix, const std::vector<GatheredPart>& placed, float* whole, float* parts,
                  bool to_whole) const;

  UpdateContext context_;
  Communicator* group_;                // null: the stage has one rank
  std::vector<Holder> holders_;        // in the group's order
  size_t own_ = 0;                     // this rank's index in holders_
  int64_t own_experts_ = 0;            // experts of a layer that a rank has, if they are spread
  std::vector<BlockMatrix> matrices_;  // in order of assignment
  std::vector<Round> rounds_;
  int64_t most_elements_ = 0, most_square_ = 0;
};

}  // namespace gptrain::optim
