// Shapes and FLOPs of encoders and encoder-decoders, which gptrain does not train: for comparisons of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/int128.h"

namespace gptrain {

struct EncoderShape {
  std::string_view name;
  std::string_view source;
  int64_t encoder_layers, decoder_layers;
  int64_t hidden_size;
  int64_t num_heads, head_size;
  int64_t ffn_hidden_size;
  int64_t vocab_size;
  int64_t input_length;      // tokens that the encoder reads
  int64_t predicted_length;  // tokens whose logits are made: the decoder's, or the masked ones of an encoder
  int64_t positions;         // learned absolute ones
  int64_t relative_buckets;  // of each stack's relative positions, by head
  int64_t batch;             // sequences of a step, as published
  bool bias;                 // of linears and norms
  bool pooler;               // and segments, as BERT has them
};

const std::vector<EncoderShape>& encoder_shapes();
std::vector<std::string> encoder_names();

struct EncoderEstimate {
  int64_t embedding = 0, encoder = 0, decoder = 0, head = 0;  // parameters; the vocabulary's matrix is the embedding's
  Flops sequence_flops = 0;  // model FLOPs of a sequence in training: products of forward, and twice that of backward

  int64_t parameters() const { return embedding + encoder + decoder + head; }
};
EncoderEstimate estimate_encoder(const EncoderShape& shape);

std::string encoder_text(const EncoderShape& shape);
std::string encoder_json(const EncoderShape& shape);

}  // namespace gptrain
