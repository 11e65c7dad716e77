// Tokens that layouts route otherwise than one rank does, over many steps of the demo: rounding moves weights, and a
// token whose experts are nearly equal may go to another one.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "experts.h"

namespace test_routed_tokens {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t layers = 4, tokens_of_step = 16 * 256;

// The two experts of each token, in rising order: by number of the token in the run, then by layer.
using Routes = std::vector<std::array<int32_t, 2>>;

// A backend that keeps the experts of each row. Passes must not run again.
class KeptRoutes final : public ForwardingBackend {
 public:
  KeptRoutes(Backend& inner, const RunConfig& config, int64_t data_rank, int64_t data_size, std::mutex& mutex,
             Routes& routes)
      : ForwardingBackend(inner),
        config_(config),
        data_rank_(data_rank),
        data_size_(data_size),
        mutex_(mutex),
        routes_(routes) {}

  using ForwardingBackend::run;
  void run(const RouteTokens& op) override {
    inner_.run(op);
    const int64_t micro_batch = calls_ / layers, layer = calls_ % layers;
    ++calls_;
    const int64_t tokens = config_.batch.micro * config_.model.sequence_length;
    if (op.experts.rows != tokens || op.experts.cols != 2) throw std::logic_error("rows of another size");
    const std::lock_guard lock(mutex_);
    for (int64_t row = 0; row < tokens; ++row) {
      const int32_t* const two = op.experts.as<const int32_t>() + row * 2;
      // Data ranks take micro-batches in turn.
      const int64_t token = (micro_batch * data_size_ + data_rank_) * tokens + row;
      routes_.at(static_cast<size_t>(token * layers + layer)) = {std::min(two[0], two[1]), std::max(two[0], two[1])};
    }
  }

 private:
  const RunConfig& config_;
  const int64_t data_rank_, data_size_;
  std::mutex& mutex_;
  Routes& routes_;
  int64_t calls_ = 0;
};

// The demo's model and batch with 8 experts in each layer, of which a token takes two.
RunConfig demo_config(const ExpertLayout& layout) {
  Overrides overrides = {"model.num_layers=4",
                         "model.hidden_size=256",
                         "model.num_heads=4",
                         "model.vocab_size=257",
                         "model.sequence_length=256",
                         "batch.global=16",
                         R"(model.moe={"experts":8,"top_k":2,"ffn_hidden_size":512})",
                         "model.bias=false",
                         "model.tied_head=false"};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(Family::gpt2, overrides, layout.ranks);
}

Routes routes_of(const ExpertLayout& layout, int steps) {
  const RunConfig config = demo_config(layout);
  const int64_t tensor = config.parallel.tensor;
  std::mutex mutex;
  Routes routes(static_cast<size_t>(steps * tokens_of_step * layers), {-1, -1});
  Wrapping wrapping;
  wrapping.backend = [&](int64_t rank, Backend& backend) -> std::unique_ptr<Backend> {
    return std::make_unique<KeptRoutes>(backend, config, rank / tensor, layout.ranks / tensor, mutex, routes);
  };
  train_on_ranks(config, layout.ranks, steps, nullptr, 0, wrapping);
  REQUIRE(std::count(routes.begin(), routes.end(), Routes::value_type{-1, -1}) == 0);
  return routes;
}

// Returns the number of tokens of each step with other experts, summed over layers.
std::vector<int64_t> routed_otherwise(const Routes& one, const Routes& other, int steps) {
  std::vector<int64_t> counts(static_cast<size_t>(steps));
  for (size_t i = 0; i < one.size(); ++i)
    if (other[i] != one[i]) ++counts[i / static_cast<size_t>(tokens_of_step * layers)];
  return counts;
}

}  // namespace

TEST_CASE("layouts route the demo's tokens as one rank until rounding moves some", "[.full]") {
  if (const char* const part = std::getenv("LAYOUTS_PART"); part != nullptr && part[0] != '0') return;
  constexpr int steps = 50;
  const Routes one = routes_of({1, {"batch.micro=8"}}, steps);
  for (const ExpertLayout& layout :
       {ExpertLayout{2, {"parallel.expert=2", "parallel.expert_room=2", "batch.micro=4"}},
        {4, {"parallel.expert=4", "parallel.expert_room=4", "parallel.tensor=2", "batch.micro=8"}},
        {4, {"parallel.expert=2", "parallel.expert_room=2", "parallel.zero=3", "batch.micro=2"}}}) {
    const std::vector<int64_t> counts = routed_otherwise(one, routes_of(layout, steps), steps);
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    std::printf("%s: of %zu routes in %d steps %lld otherwise than on one rank, by step:",
                fmt::format("{}", fmt::join(layout.overrides, " ")).c_str(), one.size(), steps,
                static_cast<long long>(sum));
    for (const int64_t count : counts) std::printf(" %lld", static_cast<long long>(count));
    std::printf("\n");
    CHECK(counts[0] == 0);
    // Weights that have nothing to do with each other route 27 of 28 tokens otherwise.
    CHECK(static_cast<double>(sum) < 0.25 * static_cast<double>(one.size()));
  }
}

}  // namespace test_routed_tokens
