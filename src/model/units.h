// The units of a GPT model: forward and backward of the embedding, a block and the head, as sequences of ops.
//
// A unit owns no memory. What it keeps between actions lies in records whose layouts it declares; every pointer of a
// call is the caller's. The maths: pre-norm transformer blocks (GPT-2; LLaMA, arXiv 2302.13971), every choice of
// ModelConfig independent of the others.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "model/record.h"
#include "model/spec/layout.h"
#include "model/spec/spec.h"
#include "ops/backend.h"

namespace gptrain {

// The shape of one micro-batch through one model.
struct StepShape {
  ModelConfig model;
  PrecisionConfig precision;
  int64_t batch = 0;            // B, sequences of a micro-batch
  int64_t sequence_length = 0;  // T, <= model.sequence_length
  int64_t loss_chunk_tokens = 0;
  uint64_t seed = 0;     // of dropout
  bool training = true;  // false: no dropout

  int64_t rows() const { return batch * sequence_length; }
};

// The flat parameter buffers of a rank, laid out by ParameterLayout. The weights of norms are read from the masters:
// they lie near 1, where rounding them to bf16 shifts a whole feature by up to 0.4%, in every row alike.
struct ParameterMemory {
  std::byte* weights = nullptr;    // compute dtype
  std::byte* master = nullptr;     // f32; the same as `weights` where that is f32
  std::byte* gradients = nullptr;  // f32
};

// What one action works on.
struct UnitCall {
  const int32_t* tokens = nullptr;      // device, [B, T]
  const int32_t* targets = nullptr;     // device, [B, T]
  const int64_t* sample_ids = nullptr;  // device, [B]
  StepState* state = nullptr;           // device
  std::byte* input = nullptr;           // [N, h] R: the residual stream that enters the unit
  std::byte* output = nullptr;          // [N, h] R: that leaves it (not for the head)
  std::byte* saved = nullptr;           // the unit's saved record
  std::byte* gradient = nullptr;        // the unit's gradient record
  std::byte* d_output = nullptr;        // [N, h] R
  std::byte* d_input = nullptr;         // [N, h] R
  bool accumulate = false;              // gradients are added to; false for a step's first micro-batch
  Workspace* workspace = nullptr;
};

class Units {
 public:
  Units(const StepShape& shape, const ModelSpec& spec, const ParameterLayout& layout, ParameterMemory memory,
        Backend& backend);

  const StepShape& shape() const { return shape_; }
  int64_t saved_bytes(int64_t unit) const;     // of the unit's saved record
  int64_t gradient_bytes(int64_t unit) const;  // of its gradient record
  int64_t stream_bytes() const;                // of one [N, h] R matrix: inputs, outputs and their gradients

  void forward(int64_t unit, const UnitCall& call);
  // Fills a block's saved record again from its input, with the same bits; the block's output is not computed.
  void recompute(int64_t unit, const UnitCall& call);
  void loss(const UnitCall& call);      // fills the head's gradient record and adds to state->loss_sum
  void evaluate(const UnitCall& call);  // adds to state->loss_sum only
  // Logits of one row of the head's saved record, in C: out is [1, Vp].
  void logits(const UnitCall& call, int64_t row, const Matrix& out);
  void backward_input(int64_t unit, const UnitCall& call);
  void backward_weight(int64_t unit, const UnitCall& call);

 private:
  struct BlockFields {
    RecordLayout saved;
    RecordLayout::Field norm1, mean1, rstd1, qkv, qk, qk_rstd, attention, lse, mid, norm2, mean2, rstd2, ffn_in,
        ffn_act;
    RecordLayout gradients;
    RecordLayout::Field d_branch1, d_branch2, d_mid, d_qkv, d_ffn_in;
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
  void find_tensors(const ModelSpec& spec);

  bool is_head(int64_t unit) const { return unit == static_cast<int64_t>(blocks_.size()) + 1; }
  const BlockTensors& block(int64_t unit) const { return blocks_[static_cast<size_t>(unit - 1)]; }
  // A tensor in one of the flat buffers; not given for -1, like the three below.
  Matrix parameter(std::byte* buffer, DType dtype, int64_t tensor) const;
  Matrix weight(int64_t tensor) const;       // compute dtype
  Matrix norm_weight(int64_t tensor) const;  // f32
  Matrix gradient(int64_t tensor) const;     // f32
  Matrix stream(std::byte* data) const {
    return {data, shape_.precision.residual, shape_.rows(), shape_.model.hidden_size};
  }
  Matrix saved(const UnitCall& call, RecordLayout::Field field) const {
    return block_fields_.saved.at(call.saved, field);
  }
  Matrix kept(const UnitCall& call, RecordLayout::Field field) const {
    return block_fields_.gradients.at(call.gradient, field);
  }
  int64_t head_weight() const { return head_weight_ >= 0 ? head_weight_ : token_table_; }

  Dropout embedding_dropout(const UnitCall& call) const;
  Dropout branch_dropout(const UnitCall& call, int64_t unit, BranchSite site) const;
  Dropout attention_dropout(const UnitCall& call, int64_t unit) const;
  // Whether the gradient of a branch differs from that of the residual stream (dropout, or another dtype).
  bool branch_gradient_differs() const;
  Matrix branch_gradient(const UnitCall& call, int64_t unit, BranchSite site, const Matrix& dx);

  void embedding_forward(const UnitCall& call);
  void block_forward(int64_t unit, const UnitCall& call);
  // Everything of a block's forward that its backward needs. `branch` is room for [N, h] C.
  void fill_saved_record(int64_t unit, const UnitCall& call, const Matrix& branch);
  void attention_forward(int64_t unit, const UnitCall& call, const Matrix& branch);
  void head_forward(const UnitCall& call);
  // Logits and losses chunk by chunk; with d_norm given also the gradients of the head's input and weight.
  void sum_losses(const UnitCall& call, const Matrix& d_norm);
  void norm_forward(const Matrix& x, const Matrix& branch, const Dropout& dropout, const Matrix& x_out, int64_t gamma,
                    int64_t beta, const Matrix& y, const Matrix& mean, const Matrix& rstd);
  void norm_backward(const Matrix& dy, const Matrix& x, int64_t gamma, int64_t beta, const Matrix& mean,
                     const Matrix& rstd, const Matrix& dx_residual, const Matrix& dx, bool accumulate);
  void embedding_backward(const UnitCall& call);
  void block_backward_input(int64_t unit, const UnitCall& call);
  void ffn_backward_input(int64_t unit, const UnitCall& call);
  void attention_backward_input(int64_t unit, const UnitCall& call, const Matrix& d_branch);
  void block_backward_weight(int64_t unit, const UnitCall& call);
  void head_backward_input(const UnitCall& call);

  // q, k and v as attention reads them, and the parts of a fused [N, q + 2 kv] matrix.
  struct QueryKeyValue {
    Matrix q, k, v;
  };
  QueryKeyValue split_qkv(const Matrix& qkv) const;
  QueryKeyValue attention_operands(const UnitCall& call) const;
  bool transforms_queries() const;

  StepShape shape_;
  ParameterLayout layout_;
  ParameterMemory memory_;
  Backend& backend_;
  std::vector<std::vector<int64_t>> tensor_shapes_;  // padded, by tensor
  int64_t token_table_ = -1, position_table_ = -1, final_norm_ = -1, final_norm_bias_ = -1, head_weight_ = -1;
  std::vector<BlockTensors> blocks_;
  BlockFields block_fields_{};
  HeadFields head_fields_{};
};

}  // namespace gptrain
