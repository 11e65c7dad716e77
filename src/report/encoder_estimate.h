// Parameters and FLOPs of encoders and encoder-decoders. gptrain does not train them: this is for comparing sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/int128.h"

namespace gptrain::inline report {

struct EncoderShape {
  std::string_view name;
  std::string_view source;
  int64_t encoder_layers, decoder_layers;
  int64_t hidden_size;
  int64_t num_heads, head_size;
  int64_t ffn_hidden_size;
  int64_t num_experts;  // feed-forward networks of a layer with experts, of which a token takes one; 1: no router
  int64_t vocab_size;
  int64_t input_length;      // tokens read by the encoder
  int64_t predicted_length;  // tokens with logits: the decoder's, or the masked tokens of an encoder
  int64_t positions;         // learned absolute positions; 0: none
  int64_t relative_buckets;  // buckets of relative positions, for each stack and head; 0: none
  int64_t batch;             // sequences per step, as published
  bool bias;                 // whether linears and norms have biases
  bool pooler;               // whether the model has BERT's pooler and segments
  int64_t expert_every = 1;  // in each stack, one layer of so many has experts
  bool gated = false;        // whether feed-forward networks have a third matrix, a gate's
};

const std::vector<EncoderShape>& encoder_shapes();
std::vector<std::string> encoder_names();

struct EncoderEstimate {
  struct Part {
    std::string_view name;
    int64_t parameters;
  };
  // The matrix of the vocabulary counts as embedding. A part that the model lacks has no parameters.
  std::array<Part, 4> parts;
  Flops sequence_flops = 0;  // model FLOPs to train on one sequence: products of forward, and twice as many of backward

  int64_t parameters() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.parameters;
    return sum;
  }
};
EncoderEstimate estimate_encoder(const EncoderShape& shape);

std::string encoder_text(const EncoderShape& shape);
std::string encoder_json(const EncoderShape& shape);

}  // namespace gptrain::report
