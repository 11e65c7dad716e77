#include "config/field_builder.h"

namespace gptrain::inline config {

Json value_json(const MoeConfig& moe) {
  if (!moe.is_on()) return Json::object();
  return {{"experts", moe.experts},
          {"top_k", moe.top_k},
          {"ffn_hidden_size", moe.ffn_hidden_size},
          {"shared", moe.shared},
          {"shared_ffn_hidden_size", moe.shared_ffn_hidden_size},
          {"every", moe.every},
          {"first", moe.first},
          {"score", router_score_names[moe.score]},
          {"renormalise", moe.renormalise},
          {"scale", moe.scale},
          {"aux_loss", moe.aux_loss},
          {"z_loss", moe.z_loss}};
}

void set_value(const Json& json, MoeConfig& moe) {
  moe = {};
  if (json.empty()) return;
  moe.experts = json.at("experts").get<int64_t>();
  moe.top_k = json.at("top_k").get<int64_t>();
  moe.ffn_hidden_size = json.value("ffn_hidden_size", moe.ffn_hidden_size);
  moe.shared = json.value("shared", moe.shared);
  moe.shared_ffn_hidden_size = json.value("shared_ffn_hidden_size", moe.shared_ffn_hidden_size);
  moe.every = json.value("every", moe.every);
  moe.first = json.value("first", moe.first);
  moe.score = named<RouterScore>(router_score_names, json.value("score", "softmax"));
  moe.renormalise = json.value("renormalise", moe.renormalise);
  moe.scale = json.value("scale", moe.scale);
  moe.aux_loss = json.value("aux_loss", moe.aux_loss);
  moe.z_loss = json.value("z_loss", moe.z_loss);
}

namespace {

const std::vector<ObjectKey>& moe_keys() {
  const NumberRule weight{.min = 0, .max = 10};
  static const std::vector<ObjectKey> keys = {
      {"experts", "experts of a block", IntegerRule{1, 1 << 16, {}}, true, "8"},
      {"top_k", "experts of a token: those with the largest logits of the router", IntegerRule{1, 1 << 10, {}}, true,
       "2"},
      {"ffn_hidden_size", "width of an expert; 0: model.ffn_hidden_size", IntegerRule{0, 1 << 22, {}}, false, "0"},
      {"shared", "experts that all tokens pass through, beside those of the router's choice",
       IntegerRule{0, 1 << 10, {}}, false, "0"},
      {"shared_ffn_hidden_size", "width of all shared experts together; 0: shared * ffn_hidden_size",
       IntegerRule{0, 1 << 22, {}}, false, "0"},
      {"every", "n: from block `first` on, every n-th block has experts; the others are dense",
       IntegerRule{1, 10'000, {}}, false, "1"},
      {"first", "number of the first block with experts; blocks are counted from 0", IntegerRule{0, 9'999, {}}, false,
       "0"},
      {"score",
       "how logits become the weights of a token's experts: by a softmax over all experts, or by a sigmoid of each",
       WordRule{{router_score_names.begin(), router_score_names.end()}, {}}, false, R"("softmax")"},
      {"renormalise", "the weights of a token's experts are divided by their sum", BooleanRule{}, false, "true"},
      {"scale", "factor of these weights", NumberRule{.min = 0, .max = 1000, .min_excluded = true}, false, "1.0"},
      {"aux_loss",
       "weight of a loss that balances the experts: for each sequence and block, experts times the sum over experts of "
       "(share of its tokens) * (mean score), averaged over the sequences of a step and added up over blocks",
       weight, false, "0.01"},
      {"z_loss", "weight of the mean over tokens of the squared log-sum-exp of the router's logits, for each block",
       weight, false, "0.001"},
  };
  return keys;
}

}  // namespace

Builder moe_field() {
  return field("model.moe", &RunConfig::model, &ModelConfig::moe, ObjectRule{moe_keys},
               "mixture of experts: blocks whose FFN is one of several, or the sum of some, by a router's choice for "
               "each token (arXiv 1701.06538); no token is dropped; {}: all blocks are dense")
      .usually(R"({"experts": 8, "top_k": 2})");
}

}  // namespace gptrain::config
