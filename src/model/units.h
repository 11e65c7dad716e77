// The units of a GPT model: forward and backward of the embedding, a block and the head, as sequences of ops.
//
// A unit owns no memory. What it keeps between actions lies in records whose layouts it declares; every pointer of a
// call is the caller's. The maths: pre-norm transformer blocks (GPT-2; LLaMA, arXiv 2302.13971), every choice of
// ModelConfig independent of the others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "model/record.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "model/tensor_parallel.h"
#include "ops/backend.h"

namespace gptrain {

// The shape of one micro-batch through one model.
struct StepShape {
  ModelConfig model;
  PrecisionConfig precision;
  int64_t batch = 0;            // B, sequences of a micro-batch
  int64_t sequence_length = 0;  // T, <= model.sequence_length
  int64_t loss_chunk_tokens = 0;
  uint64_t seed = 0;            // of dropout
  bool training = true;         // false: no dropout
  bool mask_documents = false;  // tokens attend within their document only
  int64_t max_documents = 0;    // of a sequence, as AttentionMask has it

  int64_t rows() const { return batch * sequence_length; }
};

// The parameters of one unit, laid out by ParameterLayout from the unit's offset on.
struct UnitParameters {
  std::byte* weights = nullptr;    // compute dtype
  std::byte* norms = nullptr;      // f32, the unit's first norm_elements only
  std::byte* gradients = nullptr;  // f32
};

// What one action works on. With sequence parallelism N stands for the rank's own rows in the residual stream.
struct UnitCall {
  UnitParameters parameters;            // of the unit
  UnitParameters head_matrix;           // of the unit that holds the head's matrix: the head, or with a tied head the
                                        // embedding
  const int32_t* tokens = nullptr;      // device, [B, T]
  const int32_t* targets = nullptr;     // device, [B, T]
  const int64_t* sample_ids = nullptr;  // device, [B]
  // Device, [B, T] (see AttentionMask); null without StepShape::mask_documents.
  const int32_t* document_starts = nullptr;
  StepState* state = nullptr;           // device
  std::byte* input = nullptr;           // [N, h] R: the residual stream that enters the unit
  std::byte* output = nullptr;          // [N, h] R: that leaves it (not for the head)
  std::byte* saved = nullptr;           // the unit's saved record
  std::byte* gradient = nullptr;        // the unit's gradient record
  std::byte* d_output = nullptr;        // [N, h] R, a carrier
  std::byte* d_input = nullptr;         // [N, h] R, a carrier
  bool accumulate = false;              // gradients are added to; false for a step's first micro-batch
  std::byte* fp8_weights = nullptr;     // of a block with FP8 linears: the record of its weights' copies
  bool prepare_weights = false;         // the copies are made first: the weights are new, or other ones were there
  Workspace* workspace = nullptr;
};

// Which of the two halves of a unit's backward pass a call is. Both at once: the products of the weights' gradients run
// while the sums of the input's gradient over the tensor ranks are under way.
enum class BackwardPart : uint8_t { input, weight, both };

class Units {
 public:
  // `tensor`: the groups and the stream that it names are the caller's and outlive the units.
  Units(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
        const ParameterLayout& layout, const TensorParallel& tensor, Backend& backend);

  const StepShape& shape() const { return shape_; }
  int64_t saved_bytes(int64_t unit) const;     // of the unit's saved record
  int64_t gradient_bytes(int64_t unit) const;  // of its gradient record
  int64_t stream_bytes() const;                // of one [N, h] R matrix: inputs and outputs
  int64_t carrier_bytes() const;               // of the gradient of one, and behind it, with FP8 linears, its amax
  int64_t fp8_weights_bytes() const;           // of a block's record of FP8 weights; 0 without FP8 linears

  void forward(int64_t unit, const UnitCall& call);
  // Fills a block's saved record again from its input, with the same bits; the block's output is not computed.
  void recompute(int64_t unit, const UnitCall& call);
  void loss(const UnitCall& call);      // fills the head's gradient record and adds to state->loss_sum
  void evaluate(const UnitCall& call);  // adds to state->loss_sum only
  // Logits of one row of the head's saved record, in C: out is [1, Vp].
  void logits(const UnitCall& call, int64_t row, const Matrix& out);
  void backward(int64_t unit, const UnitCall& call, BackwardPart part);

 private:
  // Copies that one linear of a block has in the records, and their inverse scales.
  struct Fp8Linear {
    RecordLayout::Field x, x_scale;                // saved: the input, transposed
    RecordLayout::Field dy, dy_scale;              // gradients: that of the output, transposed
    RecordLayout::Field w, w_transposed, w_scale;  // fp8_weights
    // Over tensor ranks: each has some columns of the input and all of the output; otherwise the other way round.
    bool row_parallel;
  };
  // With FP8 linears there are no norm1, norm2, ffn_act, d_qkv and d_ffn_in, and only with them there is d_mid_amax.
  struct BlockFields {
    RecordLayout saved;
    RecordLayout::Field norm1, mean1, rstd1, qkv, qk, qk_rstd, attention, lse, mid, norm2, mean2, rstd2, ffn_in,
        ffn_act;
    RecordLayout gradients;
    RecordLayout::Field d_branch1, d_branch2, d_mid, d_mid_amax, d_qkv, d_ffn_in;
    RecordLayout fp8_weights;
    std::array<Fp8Linear, 4> fp8;  // qkv, out, ffn_in, ffn_out
  };
  struct HeadFields {
    RecordLayout saved;
    RecordLayout::Field norm, mean, rstd;
    RecordLayout gradients;
    RecordLayout::Field d_norm;
  };
  // Tensors of one block, as indices in the spec; -1 where the model has none.
  struct BlockTensors {
    int64_t norm1, norm1_bias, qkv, qkv_bias, q_norm, k_norm, out, out_bias, norm2, norm2_bias, ffn_in, ffn_in_bias,
        ffn_out, ffn_out_bias;
  };
  enum class BranchSite : uint32_t { attention = 0, ffn = 1 };

  void declare_records();
  void declare_fp8_records();
  void find_tensors(const ModelSpec& spec);

  bool is_head(int64_t unit) const { return unit == static_cast<int64_t>(blocks_.size()) + 1; }
  const BlockTensors& block(int64_t unit) const { return blocks_[static_cast<size_t>(unit - 1)]; }
  // Tensors of the call's unit; not given for -1.
  Matrix weight(const UnitCall& call, int64_t tensor) const;
  Matrix norm_weight(const UnitCall& call, int64_t tensor) const;  // f32
  Matrix gradient(const UnitCall& call, int64_t tensor) const;
  Matrix head_matrix(std::byte* unit, DType dtype) const;
  Matrix place_of(std::byte* unit, DType dtype, int64_t tensor) const;
  // Rows of the residual stream that this rank holds, and the first of them.
  int64_t stream_rows() const { return tensor_.sequence ? shape_.rows() / tensor_.place.size : shape_.rows(); }
  int64_t first_row() const { return tensor_.sequence ? tensor_.place.rank * stream_rows() : 0; }
  bool is_split() const { return tensor_.place.size > 1; }
  Matrix stream(std::byte* data) const {
    return {data, shape_.precision.residual, stream_rows(), shape_.model.hidden_size};
  }
  Matrix saved(const UnitCall& call, RecordLayout::Field field) const {
    return block_fields_.saved.at(call.saved, field);
  }
  Matrix kept(const UnitCall& call, RecordLayout::Field field) const {
    return block_fields_.gradients.at(call.gradient, field);
  }

  Matrix fp8_weight(const UnitCall& call, RecordLayout::Field field) const {
    return block_fields_.fp8_weights.at(call.fp8_weights, field);
  }

  Dropout embedding_dropout(const UnitCall& call) const;
  Dropout branch_dropout(const UnitCall& call, int64_t unit, BranchSite site) const;
  Dropout attention_dropout(const UnitCall& call, int64_t unit) const;
  AttentionMask attention_mask(const UnitCall& call) const;
  // Whether the gradient of a branch differs from that of the residual stream (dropout, or another dtype), and whether
  // it has a place of its own in the gradient record (also where it is gathered).
  bool branch_gradient_differs() const;
  bool branch_gradient_is_kept() const { return branch_gradient_differs() || tensor_.sequence; }
  // What a linear multiplies by its weight: its input, or the gradient of its output. With FP8 linears the op that
  // computes x may leave its amax; where there is none, the linear takes it.
  struct Factor {
    Matrix x;
    Matrix amax = {};
  };
  // Room for an amax; not given without FP8 linears.
  Matrix room_for_amax(WorkspaceFrame& frame) const;
  // The amax behind a carrier's matrix, likewise.
  Matrix carrier_amax(std::byte* carrier) const;
  // The gradient of the residual stream between both branches, from the gradient record.
  Factor d_mid(const UnitCall& call) const;
  // The gradient of a branch, all rows: computes it from that of the residual stream, `dx`, with its amax, in `frame`.
  Factor branch_gradient(const UnitCall& call, int64_t unit, BranchSite site, const Factor& dx, WorkspaceFrame& frame);
  Matrix kept_branch_gradient(const UnitCall& call, BranchSite site, const Matrix& dx) const;

  // A matrix of all rows [N, cols], and the tickets of its parts that are still on their way.
  struct Gathering {
    Matrix whole;
    Lane::Ticket ticket = Lane::done;
  };
  // All rows of what each rank holds its rows of. Without sequence parallelism that is `rows` itself; else it goes to
  // `whole`.
  Gathering begin_gather(const Matrix& rows, const Matrix& whole);
  Matrix room_for_all_rows(WorkspaceFrame& frame, const Matrix& rows) const;
  Matrix wait(const Gathering& gathering);
  // Sums `part` over the tensor ranks. The result is this rank's rows of the sum: `part` itself without sequence
  // parallelism, else it goes to `rows`.
  struct Reduction {
    Matrix rows;
    Lane::Ticket ticket = Lane::done;
  };
  Reduction begin_sum(const Matrix& part, WorkspaceFrame& frame);
  Matrix wait(const Reduction& reduction);
  // y = x w^T + bias, with x gathered piece by piece where each rank holds its rows: a piece is multiplied while the
  // next is on its way.
  void column_linear(const UnitCall& call, const Factor& x, int64_t weight, int64_t bias, const Matrix& y,
                     const Matrix& pre_activation = {});
  // This rank's part of y = x w^T + bias.
  void row_linear(const UnitCall& call, const Factor& x, int64_t weight, int64_t bias, const Matrix& part);
  // dx = dy w, this rank's part.
  void input_product(const UnitCall& call, const Factor& dy, int64_t weight, int64_t bias, const Matrix& dx);

  bool has_fp8_linears() const;
  const Fp8Linear& fp8_linear(int64_t weight) const;
  // Where a linear's input, or the gradient of its output, is computed: in its field of the record, or with FP8
  // linears, which keep copies of it, in the frame.
  Factor linear_input(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field, int64_t rows,
                      int64_t cols) const;
  Factor linear_gradient(const UnitCall& call, WorkspaceFrame& frame, RecordLayout::Field field, int64_t cols) const;
  // The factor's amax; taken here, in `frame`, where the factor comes without. Where that is of a part of the tensor,
  // it becomes that of the whole: so that a tensor has one scale, however many ranks share it.
  Matrix whole_amax(const Factor& factor, bool is_part, WorkspaceFrame& frame);
  // Of a product with the weight, the terms that count in the model.
  int64_t true_terms(int64_t weight) const;
  // FP8 copies of the block's weights, where they are to be made anew.
  void prepare_weights(int64_t unit, const UnitCall& call);
  // Saves the FP8 input of a linear, transposed; `rows`, if given, gets it as it is.
  void save_fp8_input(const UnitCall& call, const Factor& x, int64_t weight, const Matrix& rows);
  void fp8_forward(const UnitCall& call, const Factor& x, int64_t weight, int64_t bias, const Matrix& y);
  // With the bias' gradient.
  void fp8_backward_input(const UnitCall& call, const Factor& dy, int64_t weight, int64_t bias, const Matrix& dx);
  void fp8_backward_weight(const UnitCall& call, int64_t weight);

  // Rows of a weight that count in the model on this rank: all, but for keys' and values' heads that a lower rank has.
  int64_t model_rows(int64_t tensor) const { return model_rows_[static_cast<size_t>(tensor)]; }
  void weight_product(const UnitCall& call, const Matrix& x, const Matrix& dy, int64_t weight, int64_t bias);

  void embedding_forward(const UnitCall& call);
  void block_forward(int64_t unit, const UnitCall& call);
  // Everything of a block's forward that its backward needs, and the input of its last linear.
  void fill_saved_record(int64_t unit, const UnitCall& call, const Factor& ffn_act);
  // This rank's part of the attention branch.
  void attention_forward(int64_t unit, const UnitCall& call, const Matrix& part);
  void head_forward(const UnitCall& call);
  // Logits and losses chunk by chunk; with d_norm given also the gradients of the head's input and weight.
  void sum_losses(const UnitCall& call, const Matrix& d_norm);
  // Losses of the rows from `first` on; with_gradient: logits become their gradients.
  void cross_entropy(const UnitCall& call, int64_t first, const Matrix& logits, bool with_gradient,
                     const Matrix& losses);
  // The weight and bias of one norm, and where its statistics are saved.
  struct NormSite {
    int64_t gamma, beta;
    Matrix mean, rstd;
  };
  NormSite norm1_site(int64_t unit, const UnitCall& call) const;
  NormSite norm2_site(int64_t unit, const UnitCall& call) const;
  NormSite head_norm_site(const UnitCall& call) const;
  void norm_forward(const UnitCall& call, const NormSite& site, const Matrix& x, const Factor& y,
                    const Matrix& branch = {}, const Dropout& dropout = {}, const Matrix& x_out = {});
  void norm_backward(const UnitCall& call, const NormSite& site, const Matrix& dy, const Matrix& x,
                     const Matrix& dx_residual, const Factor& dx);
  void embedding_backward(const UnitCall& call);
  void block_backward_input(int64_t unit, const UnitCall& call, bool with_weights);
  void ffn_backward_input(int64_t unit, const UnitCall& call, bool with_weights);
  void attention_backward_input(int64_t unit, const UnitCall& call, bool with_weights);
  void attention_core_backward(int64_t unit, const UnitCall& call, const Matrix& d_attention, const Matrix& d_qkv);
  void ffn_backward_weight(int64_t unit, const UnitCall& call, const Matrix& norm2);
  void attention_backward_weight(int64_t unit, const UnitCall& call, const Matrix& norm1);
  void block_backward_weight(int64_t unit, const UnitCall& call);
  void head_backward_input(const UnitCall& call);
  // Of the vocabulary: the first token of this rank's slice, and how many true ones it has.
  int64_t first_token() const;
  int64_t true_tokens() const;

  // q, k and v as attention reads them, and the parts of a fused [N, q + 2 kv] matrix.
  struct QueryKeyValue {
    Matrix q, k, v;
  };
  // Heads of this rank.
  int64_t num_heads() const { return shape_.model.num_heads / tensor_.place.size; }
  int64_t num_kv_heads() const;
  int64_t q_width() const { return num_heads() * shape_.model.head_size(); }
  int64_t kv_width() const { return num_kv_heads() * shape_.model.head_size(); }
  int64_t ffn_width() const { return shape_.model.ffn_hidden_size / tensor_.place.size; }
  QueryKeyValue split_qkv(const Matrix& qkv) const;
  QueryKeyValue attention_operands(const UnitCall& call) const;
  bool transforms_queries() const;
  // Whether the products around the activation compute it too. What is saved of them includes the bias then.
  bool activation_is_fused() const;

  StepShape shape_;
  ParameterLayout layout_;
  TensorParallel tensor_;
  Backend& backend_;
  std::vector<std::vector<int64_t>> tensor_shapes_;  // of the rank's shards, by tensor
  std::vector<int64_t> model_rows_;                  // by tensor
  std::vector<int64_t> tensor_offsets_;              // elements from the start of the unit, by tensor
  int64_t token_table_ = -1, position_table_ = -1, final_norm_ = -1, final_norm_bias_ = -1, head_weight_ = -1;
  std::vector<BlockTensors> blocks_;
  std::vector<int8_t> linear_of_tensor_;  // with FP8 linears: index in BlockFields::fp8, by tensor; -1 for the others
  BlockFields block_fields_{};
  HeadFields head_fields_{};
};

}  // namespace gptrain
