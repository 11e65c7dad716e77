#include "config/field_builder.h"

namespace gptrain::inline config {

Json value_json(const MoeConfig& moe) {
  if (!moe.is_on()) return Json::object();
  return {{"experts", moe.experts},
          {"top_k", moe.top_k},
          {"ffn_hidden_size", moe.ffn_hidden_size},
          {"shared", moe.shared},
          {"shared_ffn_hidden_size", moe.shared_ffn_hidden_size},
          {"shared_gate", shared_gate_names[moe.shared_gate]},
          {"every", moe.every},
          {"first", moe.first},
          {"score", router_score_names[moe.score]},
          {"renormalise", moe.renormalise},
          {"scale", moe.scale},
          {"router_bias_rate", moe.router_bias_rate},
          {"groups", moe.groups},
          {"group_top_k", moe.group_top_k},
          {"capacity", moe.capacity},
          {"capacity_over", capacity_over_names[moe.capacity_over]},
          {"drop", drop_rule_names[moe.drop]},
          {"aux_loss", moe.aux_loss},
          {"aux_over", balance_over_names[moe.aux_over]},
          {"z_loss", moe.z_loss},
          {"jitter", moe.jitter}};
}

void set_value(const Json& json, MoeConfig& moe) {
  moe = {};
  if (json.empty()) return;
  moe.experts = json.at("experts").get<int64_t>();
  moe.top_k = json.at("top_k").get<int64_t>();
  moe.ffn_hidden_size = json.value("ffn_hidden_size", moe.ffn_hidden_size);
  moe.shared = json.value("shared", moe.shared);
  moe.shared_ffn_hidden_size = json.value("shared_ffn_hidden_size", moe.shared_ffn_hidden_size);
  moe.shared_gate = named<SharedGate>(shared_gate_names, json.value("shared_gate", "none"));
  moe.every = json.value("every", moe.every);
  moe.first = json.value("first", moe.first);
  moe.score = named<RouterScore>(router_score_names, json.value("score", "softmax"));
  moe.renormalise = json.value("renormalise", moe.renormalise);
  moe.scale = json.value("scale", moe.scale);
  moe.router_bias_rate = json.value("router_bias_rate", moe.router_bias_rate);
  moe.groups = json.value("groups", moe.groups);
  moe.group_top_k = json.value("group_top_k", moe.groups);
  moe.capacity = json.value("capacity", moe.capacity);
  moe.capacity_over = named<CapacityOver>(capacity_over_names, json.value("capacity_over", "sequence"));
  moe.drop = named<DropRule>(drop_rule_names, json.value("drop", "probability"));
  moe.aux_loss = json.value("aux_loss", moe.aux_loss);
  moe.aux_over = named<BalanceOver>(balance_over_names, json.value("aux_over", "sequence"));
  moe.z_loss = json.value("z_loss", moe.z_loss);
  moe.jitter = json.value("jitter", moe.jitter);
}

namespace {

constexpr int64_t most_groups = 64;  // RouterRule

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
      {"shared_gate",
       "sigmoid: the result of the shared experts is multiplied by a sigmoid of a product of the token with a vector",
       WordRule{{shared_gate_names.begin(), shared_gate_names.end()}, {}}, false, R"("none")"},
      {"every", "n: from block `first` on, every n-th block has experts; the others are dense",
       IntegerRule{1, 10'000, {}}, false, "1"},
      {"first", "number of the first block with experts; blocks are counted from 0", IntegerRule{0, 9'999, {}}, false,
       "0"},
      {"score",
       "how logits become the weights of a token's experts: by a softmax over all experts, or by a sigmoid of each",
       WordRule{{router_score_names.begin(), router_score_names.end()}, {}}, false, R"("softmax")"},
      {"renormalise", "the weights of a token's experts are divided by their sum", BooleanRule{}, false, "true"},
      {"scale", "factor of these weights", NumberRule{.min = 0, .max = 1000, .min_excluded = true}, false, "1.0"},
      {"router_bias_rate",
       "balance without a loss: each expert has a bias, added to its score for the choice only, that rises by this "
       "much in each step if the expert got fewer tokens than the mean, and falls by it if more (arXiv 2408.15664)",
       NumberRule{.min = 0, .max = 1}, false, "0"},
      {"groups", "groups of experts, in their order; divides experts", IntegerRule{1, most_groups, {}}, false, "1"},
      {"group_top_k",
       "groups that a token's experts may be in: those whose top_k / group_top_k largest scores have the largest sums; "
       "default: all groups",
       IntegerRule{1, most_groups, {}}, false, "1"},
      {"capacity",
       "bound of an expert's tokens, as a multiple of the mean over experts; what is above it is dropped; 0: none",
       NumberRule{.min = 0, .max = 1 << 16}, false, "0"},
      {"capacity_over",
       "tokens among which an expert has its capacity: of a sequence, or of a rank's micro-batch, so that results "
       "depend on the layout",
       WordRule{{capacity_over_names.begin(), capacity_over_names.end()}, {}}, false, R"("sequence")"},
      {"drop", "tokens that an expert above its capacity drops: those with the smallest weights, or the last ones",
       WordRule{{drop_rule_names.begin(), drop_rule_names.end()}, {}}, false, R"("probability")"},
      {"aux_loss",
       "weight of a loss that balances the experts: for each sequence and block, experts times the sum over experts of "
       "(share of its tokens) * (mean score), averaged over the sequences of a step and added up over blocks",
       weight, false, "0.01"},
      {"aux_over",
       "tokens whose shares are in this loss: of the sequence; of a rank's micro-batch, so that results depend on the "
       "layout; or, global, of all sequences of the step before, which any layout knows",
       WordRule{{balance_over_names.begin(), balance_over_names.end()}, {}}, false, R"("sequence")"},
      {"z_loss", "weight of the mean over tokens of the squared log-sum-exp of the router's logits, for each block",
       weight, false, "0.001"},
      {"jitter",
       "in training, the router's input is multiplied by random numbers from 1 - jitter to 1 + jitter (arXiv "
       "2101.03961)",
       NumberRule{.min = 0, .max = 0.99}, false, "0"},
  };
  return keys;
}

}  // namespace

Builder moe_field() {
  return field("model.moe", &RunConfig::model, &ModelConfig::moe, ObjectRule{moe_keys},
               "mixture of experts: blocks with several FFNs, of which a router chooses one or more for each token "
               "(arXiv 1701.06538); {}: all blocks are dense")
      .usually(R"({"experts": 8, "top_k": 2})");
}

}  // namespace gptrain::config
