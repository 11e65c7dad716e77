#include "report/encoder_estimate.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/text_parts.h"
#include "base/units.h"
#include "step/flops_json.h"

namespace gptrain::inline report {
namespace {

using Json = nlohmann::ordered_json;

// Returns the number of parameters of a layer's router.
int64_t router_size(const EncoderShape& s) { return s.num_experts > 1 ? s.hidden_size * s.num_experts : 0; }

struct EncoderBlock {
  int64_t attention, dense_ffn, experts, norm;  // numbers of parameters

  explicit EncoderBlock(const EncoderShape& s) {
    const int64_t q = s.num_heads * s.head_size, h = s.hidden_size, f = s.ffn_hidden_size;
    attention = 4 * h * q + (s.bias ? 3 * q + h : 0);
    dense_ffn = (s.gated ? 3 : 2) * h * f + (s.bias ? f + h : 0);
    experts = s.num_experts * dense_ffn + router_size(s);
    norm = (s.bias ? 2 : 1) * h;
  }

  // Returns the parameters of the feed-forward networks of a stack's layers.
  int64_t ffn_of(int64_t layers, const EncoderShape& s) const {
    const int64_t with_experts = layers / s.expert_every;
    return with_experts * experts + (layers - with_experts) * dense_ffn;
  }
};

// Bytes per parameter: bf16 weight; f32 gradient, master weight and both moments of AdamW.
constexpr int64_t state_bytes = 2 + 4 + 4 + 8;

}  // namespace

const std::vector<EncoderShape>& encoder_shapes() {
  static const std::vector<EncoderShape> shapes = {
      {.name = "bert-large",
       .source = "arXiv 1810.04805",
       .encoder_layers = 24,
       .decoder_layers = 0,
       .hidden_size = 1024,
       .num_heads = 16,
       .head_size = 64,
       .ffn_hidden_size = 4096,
       .num_experts = 1,
       .vocab_size = 30522,
       .input_length = 512,
       .predicted_length = 77,
       .positions = 512,
       .relative_buckets = 0,
       .batch = 256,
       .bias = true,
       .pooler = true},
      {.name = "bert-3.9b",
       .source = "arXiv 1909.08053",
       .encoder_layers = 48,
       .decoder_layers = 0,
       .hidden_size = 2560,
       .num_heads = 40,
       .head_size = 64,
       .ffn_hidden_size = 10240,
       .num_experts = 1,
       .vocab_size = 30522,
       .input_length = 512,
       .predicted_length = 77,
       .positions = 512,
       .relative_buckets = 0,
       .batch = 1024,
       .bias = true,
       .pooler = true},
      {.name = "t5-11b",
       .source = "arXiv 1910.10683",
       .encoder_layers = 24,
       .decoder_layers = 24,
       .hidden_size = 1024,
       .num_heads = 128,
       .head_size = 128,
       .ffn_hidden_size = 65536,
       .num_experts = 1,
       .vocab_size = 32128,
       .input_length = 512,
       .predicted_length = 114,
       .positions = 0,
       .relative_buckets = 32,
       .batch = 2048,
       .bias = false,
       .pooler = false},
      {.name = "switch-base-7b",
       .source = "arXiv 2101.03961",
       .encoder_layers = 12,
       .decoder_layers = 12,
       .hidden_size = 768,
       .num_heads = 12,
       .head_size = 64,
       .ffn_hidden_size = 3072,
       .num_experts = 128,
       .vocab_size = 32128,
       .input_length = 512,
       .predicted_length = 114,
       .positions = 0,
       .relative_buckets = 32,
       .batch = 2048,
       .bias = false,
       .pooler = false,
       .expert_every = 2},
      {.name = "switch-large-26b",
       .source = "arXiv 2101.03961",
       .encoder_layers = 24,
       .decoder_layers = 24,
       .hidden_size = 1024,
       .num_heads = 16,
       .head_size = 64,
       .ffn_hidden_size = 4096,
       .num_experts = 128,
       .vocab_size = 32128,
       .input_length = 512,
       .predicted_length = 114,
       .positions = 0,
       .relative_buckets = 32,
       .batch = 2048,
       .bias = false,
       .pooler = false,
       .expert_every = 2},
      {.name = "switch-xxl-395b",
       .source = "arXiv 2101.03961",
       .encoder_layers = 24,
       .decoder_layers = 24,
       .hidden_size = 4096,
       .num_heads = 64,
       .head_size = 64,
       .ffn_hidden_size = 10240,
       .num_experts = 128,
       .vocab_size = 32128,
       .input_length = 512,
       .predicted_length = 114,
       .positions = 0,
       .relative_buckets = 32,
       .batch = 2048,
       .bias = false,
       .pooler = false,
       .expert_every = 2,
       .gated = true},
      {.name = "switch-c-1.6t",
       .source = "arXiv 2101.03961",
       .encoder_layers = 15,
       .decoder_layers = 15,
       .hidden_size = 2080,
       .num_heads = 32,
       .head_size = 64,
       .ffn_hidden_size = 6144,
       .num_experts = 2048,
       .vocab_size = 32128,
       .input_length = 512,
       .predicted_length = 114,
       .positions = 0,
       .relative_buckets = 32,
       .batch = 2048,
       .bias = false,
       .pooler = false},
  };
  return shapes;
}

std::vector<std::string> encoder_names() {
  std::vector<std::string> names;
  for (const EncoderShape& shape : encoder_shapes()) names.emplace_back(shape.name);
  return names;
}

EncoderEstimate estimate_encoder(const EncoderShape& s) {
  const EncoderBlock block(s);
  const int64_t h = s.hidden_size, q = s.num_heads * s.head_size;
  constexpr int64_t segments = 2;
  // A stack without biases (T5) has a norm at its end, and relative positions that all its layers share.
  const int64_t of_stack = (s.bias ? 0 : block.norm) + s.relative_buckets * s.num_heads;
  const int64_t of_decoder =
      s.decoder_layers * (2 * block.attention + 3 * block.norm) + block.ffn_of(s.decoder_layers, s) + of_stack;
  EncoderEstimate estimate{
      .parts = {{
          {"embedding", (s.vocab_size + s.positions + (s.pooler ? segments : 0)) * h + (s.pooler ? block.norm : 0)},
          {"encoder",
           s.encoder_layers * (block.attention + 2 * block.norm) + block.ffn_of(s.encoder_layers, s) + of_stack},
          {"decoder", s.decoder_layers > 0 ? of_decoder : 0},
          {"pooler", s.pooler ? h * h + h : 0},
      }}};
  const Flops input = wide(s.input_length), output = wide(s.predicted_length);
  const Flops layers = wide(s.encoder_layers), decoders = wide(s.decoder_layers);
  // A token takes one network in each layer; the router's share is that of the layers with experts.
  const int64_t matrices = s.gated ? 3 : 2;
  const Flops projections = wide(h * q), ffn = wide(matrices * h * s.ffn_hidden_size + router_size(s) / s.expert_every);
  // Training takes 6 FLOPs for each weight and token, and in attention 12 for each pair and feature, causal pairs half.
  Flops flops = 6 * input * layers * (4 * projections + ffn) + 12 * input * input * wide(q) * layers;
  flops += 6 * decoders * (output * (6 * projections + ffn) + input * 2 * projections);
  flops += 6 * decoders * wide(q) * (output * output + 2 * output * input);
  flops += 6 * output * wide(h * s.vocab_size);
  estimate.sequence_flops = flops;
  return estimate;
}

std::string encoder_text(const EncoderShape& s) {
  const EncoderEstimate estimate = estimate_encoder(s);
  const auto parameters = static_cast<double>(estimate.parameters());
  std::string text =
      fmt::format("{} ({}): parameters and FLOPs only; gptrain cannot train this model\n", s.name, s.source);
  text += fmt::format("  {} encoder layers{}, hidden {}, ffn {}, {} heads of {}, vocabulary {}{}\n", s.encoder_layers,
                      s.decoder_layers > 0 ? fmt::format(" and {} decoder layers", s.decoder_layers) : "",
                      s.hidden_size, s.ffn_hidden_size, s.num_heads, s.head_size, s.vocab_size,
                      s.num_experts > 1 ? fmt::format(", {} experts{}, of which a token takes one", s.num_experts,
                                                      s.expert_every > 1 ? " in every second layer" : "")
                                        : "");
  text += "\nparameters\n";
  for (const EncoderEstimate::Part& part : estimate.parts)
    if (part.parameters > 0) text += text_row(part.name, format_grouped(part.parameters));
  text += text_row("total", format_grouped(estimate.parameters()), format_count(parameters));
  text += text_row("state", format_grouped(state_bytes * estimate.parameters()),
                   fmt::format("{}: {} bytes a parameter in bf16 with AdamW",
                               format_bytes(static_cast<double>(state_bytes) * parameters), state_bytes));
  const auto flops = static_cast<double>(estimate.sequence_flops);
  text += "\nmodel FLOPs in training\n";
  text += text_row("sequence", fmt::format("{:.3e}", flops),
                   fmt::format("{} tokens in, {} predicted", s.input_length, s.predicted_length));
  text += text_row("step", fmt::format("{:.3e}", flops * static_cast<double>(s.batch)),
                   fmt::format("{} sequences, as published", s.batch));
  text += text_row("token", fmt::format("{:.3e}", flops / static_cast<double>(s.input_length)), "of input");
  return text;
}

std::string encoder_json(const EncoderShape& s) {
  const EncoderEstimate estimate = estimate_encoder(s);
  Json parts;
  for (const EncoderEstimate::Part& part : estimate.parts) parts[std::string(part.name)] = part.parameters;
  const Json json{{"model", s.name},
                  {"source", s.source},
                  {"total_parameters", estimate.parameters()},
                  {"parameters_by_part", parts},
                  {"state_bytes", state_bytes * estimate.parameters()},
                  {"sequence_flops", flops_json(estimate.sequence_flops)},
                  {"batch", s.batch},
                  {"model_flops_per_step", flops_json(estimate.sequence_flops * wide(s.batch))}};
  return json_text(json, 2) + "\n";
}

}  // namespace gptrain::report
