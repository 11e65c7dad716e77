// The matrices of blocks whole: which rank works on which, and how their parts come there and back.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "optim/optimizer.h"

namespace gptrain {

// A weight of a block, or one of its sections: queries, keys, values, gate and up are matrices of their own.
struct BlockMatrix {
  int64_t tensor;
  int64_t first_row;  // in the tensor
  int64_t rows, cols;

  int64_t count() const { return rows * cols; }
};

// Those of the units that the layout holds, in the order of the tensors.
std::vector<BlockMatrix> block_matrices(const ModelSpec& spec, const ParameterLayout& layout);

// Where the elements of each of them are that a rank holds.
struct MatrixPart {
  int64_t row = 0, col = 0, cols = 0;  // of a box of the matrix: its corner and its width
  int64_t first = 0, count = 0;        // of the box's elements, row by row, those that the rank has
  int64_t in_unit = 0;                 // elements before them in the rank's unit
  bool owned = false;                  // no lower tensor rank holds the same
};

// Plays rounds in each of which a rank has at most one matrix. Larger matrices come first, so that those of a round are
// of a size, and the first of the next round goes to the rank that had the last of this one.
class MatrixExchange {
 public:
  // Borrows the context's references. Collective over the ranks of the stage, as are the rounds.
  explicit MatrixExchange(const UpdateContext& context);

  int64_t num_rounds() const { return std::ssize(rounds_); }
  // Elements of the largest matrix, and of the largest square with the smaller side of a matrix. The same on all ranks.
  int64_t most_elements() const { return most_elements_; }
  int64_t most_square() const { return most_square_; }
  // Whether matrices come from several ranks. If not, they lie where the gradients are, without gaps.
  bool gathers() const { return group_ != nullptr; }

  // Calls work(matrix, values) for the matrix that this rank has in the round, if it has one: [rows, cols] f32, from
  // the gradients of the ranks and back to them. `whole` and `parts` are memory for most_elements f32, which are only
  // looked at if matrices are gathered; `parts` is free during `work`.
  void play(int64_t round, std::byte* whole, std::byte* parts,
            const std::function<void(const BlockMatrix&, const Matrix&)>& work);

 private:
  struct Placed {
    MatrixPart part;
    int64_t at;  // elements from the start of `parts`
  };
  // Ranges by peer, in the gradients or in `parts`.
  struct Round {
    int64_t own = -1;  // of matrices_; -1: none
    std::vector<PeerPart> sent, received;            // to the owners
    std::vector<PeerPart> sent_back, received_back;  // and back
    std::vector<Placed> gathered, returned;          // of the own matrix
  };

  MatrixPart part_of(const BlockMatrix& matrix, const std::vector<TensorShard>& shards, int64_t copy) const;
  int64_t in_gradients(const BlockMatrix& matrix, const MatrixPart& part) const;
  void add_own(Round& round, const std::vector<RankGroups::StagePlace>& places,
               const std::vector<std::vector<TensorShard>>& shards) const;
  void copy_parts(const BlockMatrix& matrix, const std::vector<Placed>& placed, float* whole, float* parts,
                  bool to_whole) const;

  UpdateContext context_;
  Communicator* group_;  // null: the stage has one rank
  RankGroups::StagePlace place_;
  std::vector<BlockMatrix> matrices_;  // as they are given out
  std::vector<Round> rounds_;
  int64_t most_elements_ = 0, most_square_ = 0;
};

}  // namespace gptrain
