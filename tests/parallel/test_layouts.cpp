// "Same results" of DESIGN.md over tensor, sequence and ZeRO data parallelism: every layout against one rank.
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "ranks.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::GlobalState;
using gptrain::testing::Outcome;
using gptrain::testing::small_config;
using gptrain::testing::train_on_ranks;

namespace {

struct Layout {
  Family family;
  int tensor, data, zero;
  bool sequence;
  int micro;
  std::vector<std::string> more;

  int world_size() const { return tensor * data; }
  std::string name() const {
    std::string name = family == Family::gpt2 ? "gpt2" : "llama";
    name += fmt::format(" tensor={} data={} zero={} sequence={} micro={}", tensor, data, zero, sequence, micro);
    for (const std::string& override_text : more) name += " " + override_text;
    return name;
  }
  RunConfig config(bool alone) const {
    std::vector<std::string> overrides = {"batch.global=12",          fmt::format("batch.micro={}", alone ? 4 : micro),
                                          "model.num_heads=6",        "model.hidden_size=48",
                                          "model.ffn_hidden_size=60", "model.sequence_length=20"};
    if (family == Family::llama) overrides.push_back("model.num_kv_heads=2");
    if (!alone) {
      overrides.push_back(fmt::format("parallel.tensor={}", tensor));
      overrides.push_back(fmt::format("parallel.zero={}", zero));
      if (sequence) overrides.push_back("parallel.sequence=true");
    }
    overrides.insert(overrides.end(), more.begin(), more.end());
    return small_config(family, overrides, alone ? 1 : world_size());
  }
};

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("first moments") {
  for (const Layout& layout :
       {Layout{Family::gpt2, 1, 2, 0, false, 3, {}}, Layout{Family::gpt2, 1, 2, 1, false, 3, {}},
        Layout{Family::gpt2, 1, 3, 2, false, 2, {}}, Layout{Family::gpt2, 1, 2, 3, false, 3, {}},
        Layout{Family::gpt2, 2, 1, 0, false, 4, {}}, Layout{Family::gpt2, 3, 1, 0, true, 6, {}},
        Layout{Family::gpt2, 2, 2, 3, true, 2, {}}, Layout{Family::llama, 2, 1, 0, false, 4, {}},
        Layout{Family::llama, 6, 1, 0, false, 6, {}}, Layout{Family::llama, 2, 2, 1, true, 2, {}},
        Layout{Family::llama, 6, 1, 0, true, 6, {"model.dropout=0.1"}},
        Layout{Family::gpt2, 2, 2, 2, true, 2, {"model.dropout=0.1"}}}) {
    const Outcome start = train_on_ranks(layout.config(true), 1, 10);
    const Outcome one = train_on_ranks(layout.config(true), 1, 1, &start.state, 1000);
    const Outcome many = train_on_ranks(layout.config(false), layout.world_size(), 1, &start.state, 1000);
    double worst = 0;
    std::string where;
    for (const auto& [name, values] : one.state) {
      if (!name.starts_with("exp_avg/")) continue;
      const double d = relative_distance(values, many.state.at(name));
      if (!(d <= worst)) {
        worst = d;
        where = name;
      }
    }
    std::printf("%-80s %.2e %s loss %.2e norm %.2e\n", layout.name().c_str(), worst, where.c_str(),
                many.losses[0] / one.losses[0] - 1, many.norms[0] / one.norms[0] - 1);
    CHECK(worst < 2e-5);
  }
}
