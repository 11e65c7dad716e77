// Rules of attention patterns, and of the scale of attention.
#include <fmt/format.h>
#include <string>
#include <vector>

#include "base/attention_pattern.h"
#include "support.h"

namespace gptrain::config_test {

TEST_CASE("an attention window is no longer than a sequence, and sets the pattern of all layers") {
  CHECK(parse({}).model.attention_pattern == std::vector{window_pattern(0)});
  CHECK(parse({"model.attention_window=0"}).model.attention_pattern == std::vector{window_pattern(0)});
  CHECK(parse({"model.attention_window=256"}).model.attention_pattern == std::vector{window_pattern(256)});
  CHECK(fault({"model.attention_window=257"}) ==
        "model.attention_window = 257: must be at most model.sequence_length = 256 (try 256)");
  CHECK(fault({"model.attention_window=-1"}) ==
        "model.attention_window = -1: must be at least 0 and at most 16777216 (try 0)");
}

TEST_CASE("attention patterns repeat over the layers") {
  const ModelConfig model = parse({R"(model.attention_pattern=["dense","band:8","band:256"])"}).model;
  CHECK(model.attention(4) == window_pattern(8));
  CHECK(model.attention(9) == window_pattern(0));
  CHECK(model.attention(11) == window_pattern(256));
  CHECK(fault({"model.attention_pattern=[]"}) ==
        "model.attention_pattern = []: must be an array of attention patterns, at least one "
        "(try [\"dense\",\"band:256\"])");
  CHECK(fault({R"(model.attention_pattern=["dense","bands:8"])"}) ==
        "model.attention_pattern[1] = \"bands:8\": must be one of dense, band:W, strided:L, columns:L, fixed:L,C or "
        "fixed:L,C/V, each with or without +global:G; sizes are 1 to 16777216, and C * V at most L (try \"band:256\")");
  for (const char* word :
       {"band:0", "fixed:8", "fixed:8,9", "fixed:8,4/3", "strided:8,1", "dense:4", "band:8+global:0"})
    CHECK(fault({fmt::format(R"(model.attention_pattern=["{}"])", word)}).find("C * V at most L") != std::string::npos);
  CHECK(fault({R"(model.attention_pattern=["dense","band:257"])"}) ==
        "model.attention_pattern[1] = \"band:257\": must be at most model.sequence_length = 256 (try \"band:256\")");
  CHECK(fault({R"(model.attention_pattern=["dense","band:8"])", "model.attention_window=8"}) ==
        "model.attention_window = 8: is also set by model.attention_pattern (try leaving one of them out)");
}

TEST_CASE("sizes of patterns are at most a sequence, and sets of columns divide the heads") {
  const auto refusal_of = [](const std::string& word, Overrides more = {}) {
    more.push_back(fmt::format(R"(model.attention_pattern=["{}"])", word));
    return fault(more);
  };
  const std::string too_long = "must be at most model.sequence_length = 256";
  CHECK(refusal_of("strided:300").ends_with(too_long + " (try \"strided:256\")"));
  CHECK(refusal_of("fixed:300,280").ends_with(too_long + " (try \"fixed:256,256\")"));
  CHECK(refusal_of("band:8+global:300").ends_with(too_long + " (try \"band:8+global:256\")"));
  CHECK(refusal_of("fixed:8,2/3").empty());
  CHECK(refusal_of("fixed:16,2/5") ==
        "model.attention_pattern[0] = \"fixed:16,2/5\": V must divide the 12 heads of model.num_heads "
        "(try \"fixed:16,2/4\")");
  CHECK(refusal_of("fixed:8,2/2", {"parallel.tensor=4"}) ==
        "model.attention_pattern[0] = \"fixed:8,2/2\": V must divide the 3 heads of a rank of parallel.tensor "
        "(try \"fixed:8,2\")");
  CHECK(refusal_of("fixed:8,2/3", {"model.num_kv_heads=6"}) ==
        "model.attention_pattern[0] = \"fixed:8,2/3\": V must divide the 2 heads that share a head of "
        "model.num_kv_heads (try \"fixed:8,2/2\")");
  CHECK(refusal_of("fixed:8,2/3", {"model.num_kv_heads=4"}).empty());
}

TEST_CASE("a scale of attention stands instead of the head size, and not beside muP") {
  CHECK(parse({}).model.score_scale() == 0.125);
  CHECK(parse({"model.mup=256"}).model.score_scale() == 1.0 / 64);
  CHECK(parse({"model.attention_scale=1"}).model.score_scale() == 1);
  CHECK(fault({"model.attention_scale=1", "model.mup=256"}) ==
        "model.attention_scale = 1.0: cannot be combined with model.mup, which sets the scale (try 0)");
}

TEST_CASE("layers rotate, and have bases and scalings of angles, by patterns") {
  const auto model_of = [](Overrides overrides) {
    overrides.emplace_back("model.positions=rope");
    return parse(overrides).model;
  };
  const ModelConfig plain = model_of({"model.rope_theta=500"});
  CHECK(plain.rotates(0));
  CHECK(plain.rope(3) == RotaryAngles{.theta = 500});
  const ModelConfig by_layer = model_of({R"(model.positions_pattern=["rope","rope","none"])"});
  CHECK(by_layer.rotates(1));
  CHECK(!by_layer.rotates(2));
  CHECK(by_layer.rotates(3));
  CHECK(!parse({}).model.rotates(0));

  const Overrides gemma = {R"(model.attention_pattern=["band:8","band:8","dense"])",
                           "model.rope_theta_pattern=[1e4,1e4,1e6]",
                           R"(model.rope_scaling_pattern=["none","none","linear"])", "model.rope_factor=8"};
  const ModelConfig by_word = model_of(gemma);
  CHECK(by_word.rope(0) == RotaryAngles{.theta = 1e4});
  CHECK(by_word.rope(4) == RotaryAngles{.theta = 1e4});
  CHECK(by_word.rope(5) == RotaryAngles{.theta = 1e6, .scaling = RopeScaling::linear, .factor = 8});

  CHECK(fault({"model.positions=rope", R"(model.rope_scaling_pattern=["none","linear"])", "model.rope_factor=8"}) ==
        "model.rope_scaling_pattern = [\"none\",\"linear\"]: must have one element for each of 1 words of "
        "model.attention_pattern (try [\"none\"])");
  CHECK(fault({"model.positions=rope", R"(model.attention_pattern=["band:8","dense"])",
               "model.rope_theta_pattern=[500]"}) ==
        "model.rope_theta_pattern = [500.0]: must have one element for each of 2 words of model.attention_pattern "
        "(try [500.0,500.0])");
  CHECK(fault({"model.positions=rope", "model.rope_theta=7", "model.rope_theta_pattern=[500]"}) ==
        "model.rope_theta = 7.0: has no effect unless model.positions is rope, and rope_theta_pattern is empty (try "
        "--set model.rope_theta=null or leaving it out)");
  CHECK(fault({"model.positions=rope", R"(model.rope_scaling_pattern=["linear"])"}).starts_with("model.rope_factor: "));
  CHECK(fault({R"(model.positions_pattern=["none"])"})
            .starts_with("model.positions_pattern = [\"none\"]: has no effect unless model.positions is rope"));
  CHECK(fault({"model.positions=rope", "model.positions_pattern=[]"}).find("at least one") != std::string::npos);
}

TEST_CASE("norms of 1 + weight are not combined with muP, and small caps are refused") {
  CHECK(
      fault({"model.norm_offset=true", "model.mup=256"}) ==
      "model.norm_offset = true: cannot be combined with model.mup, which sets the gain of the last norm (try false)");
  CHECK(fault({"model.logit_softcap=0.001"}).starts_with("model.logit_softcap = 0.001: "));
  CHECK(fault({"model.embedding_scale=0"}).starts_with("model.embedding_scale = 0"));
  CHECK(is_gated(parse({"model.activation=geglu_tanh"}).model.activation));
  CHECK(parse({"model.activation=geglu"}).model.ffn_hidden_size == 2048);
}

}  // namespace gptrain::config_test
