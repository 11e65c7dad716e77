// Compares every layout of tensor, sequence and ZeRO data parallelism with one rank (Difference::small).
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "some_cases.h"

namespace test_layouts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

void compare_all(const std::vector<LayoutCase>& layouts) {
  fmt::print("{} layouts\n", layouts.size());
  fmt::print("{:<104} {:>8} {:<38} {:>8} {:>9} {:>9}\n", "layout", "moment", "of", "weight", "loss", "norm");
  for (const LayoutCase& layout : layouts) {
    INFO(layout.name());
    const Difference d = compare_with_one_rank(layout);
    fmt::print("{:<104} {:8.1e} {:<38} {:8.1e} {:9.1e} {:9.1e}\n", layout.name(), d.first_moment, d.moment_of, d.weight,
               d.loss, d.norm);
    CHECK(d.small());
  }
}

}  // namespace

TEST_CASE("first moments of a covering set of layouts") {
  const std::vector<LayoutCase> layouts = covering(full_product());
  CHECK(layouts.size() <= 60);
  std::set<int64_t> world_sizes;
  for (const LayoutCase& layout : layouts) world_sizes.insert(layout.world_size());
  if (!some_cases()) CHECK(world_sizes == std::set<int64_t>{3, 4, 5, 6, 8});
  compare_all(layouts);
}

namespace {

struct Layout {
  int64_t world_size;
  std::vector<std::string> overrides;
};

// Checks that the ranks of each layout compute one rank's first moments, from a state after ten steps.
void compare_with_one_rank(Family family, const std::vector<std::string>& model, const std::vector<Layout>& layouts) {
  const auto config_of = [&](const Layout& layout) {
    std::vector<std::string> overrides = {"model.dropout=0.1", "model.num_heads=4", "optimizer.eps=1e-3"};
    overrides.insert(overrides.end(), model.begin(), model.end());
    overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
    return small_config(family, overrides, layout.world_size);
  };
  const Layout alone{1, {}};
  const GlobalState start = train_on_ranks(config_of(alone), 1, 10).state;
  const Outcome one = train_on_ranks(config_of(alone), 1, 1, &start, 1000);
  for (const Layout& layout : layouts) {
    const Outcome many = train_on_ranks(config_of(layout), layout.world_size, 1, &start, 1000);
    const Difference d = difference(make_spec(config_of(layout).model), one, many);
    INFO(layout.world_size << " ranks, moment " << d.first_moment << " of " << d.moment_of);
    CHECK(d.small());
  }
}

}  // namespace

TEST_CASE("first moments with attention windows in some layers and documents") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    compare_with_one_rank(
        family,
        {R"(model.attention_pattern=["dense","band:6"])", "data.mask_documents=true", "model.hidden_size=40",
         "model.attention_scale=0.5", "model.attention_softcap=0.5", "model.attention_sinks=true"},
        {{1, {"batch.micro=1"}},
         {2, {"parallel.tensor=2", "batch.micro=2", "parallel.sequence=true"}},
         {2, {"batch.micro=1", "parallel.zero=3"}},
         {2, {"batch.micro=1", "parallel.pipeline=2", "memory.offload_activations=all"}},
         {4, {"parallel.tensor=2", "batch.micro=2"}}});
  }
}

TEST_CASE("first moments with the norms, scales, caps and angles of Gemma") {
  compare_with_one_rank(
      Family::llama,
      {"model.norm_offset=true", "model.norm_after=true", "model.embedding_scale=6.5", "model.logit_softcap=0.7",
       "model.activation=geglu_tanh", "model.tied_head=true", R"(model.attention_pattern=["band:6","dense"])",
       R"(model.positions_pattern=["rope","rope","none"])", "model.rope_theta_pattern=[50,9000]",
       R"(model.rope_scaling_pattern=["none","linear"])", "model.rope_factor=4"},
      {{1, {"batch.micro=1", "memory.recompute=block"}},
       {2, {"parallel.tensor=2", "batch.micro=2", "parallel.sequence=true", "memory.recompute=selective"}},
       {2, {"batch.micro=1", "parallel.zero=3"}},
       {2, {"batch.micro=1", "parallel.pipeline=2", "memory.offload_activations=all"}},
       {4, {"parallel.tensor=2", "batch.micro=2"}}});
}

TEST_CASE("first moments with heads of their own size, biases of queries alone, and scaled angles") {
  compare_with_one_rank(
      Family::llama,
      {"model.head_size=14", "model.qkv_bias=true", "model.qk_norm=false", "model.rope_scaling=llama3",
       "model.rope_factor=4", "model.rope_theta=50", "model.rope_original_length=8"},
      {{2, {"parallel.tensor=2", "batch.micro=2", "parallel.sequence=true"}},
       {4, {"parallel.tensor=4", "batch.micro=2"}},
       {4, {"parallel.tensor=2", "batch.micro=2", "parallel.zero=3"}}});
}

// LAYOUTS_PART=I/N runs every N-th case from number I on, to split the test over cores.
TEST_CASE("first moments of every layout", "[.full]") {
  size_t part = 0, parts = 1;
  if (const char* text = std::getenv("LAYOUTS_PART"))
    REQUIRE((std::sscanf(text, "%zu/%zu", &part, &parts) == 2 && part < parts));
  const std::vector<LayoutCase> all = full_product();
  std::vector<LayoutCase> own;
  for (size_t i = part; i < all.size(); i += parts) own.push_back(all[i]);
  compare_all(own);
}

}  // namespace test_layouts
