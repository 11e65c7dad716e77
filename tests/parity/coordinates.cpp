// Measures how far a few steps move the activations of a small model, by its width, for tools/compare/mup_check.py.
//
// Run as coordinates gpt2|llama WIDTH STEPS [OVERRIDE]..., with OVERRIDEs as on the command line. Prints a line of
// JSON: {"width": W, "moved": {NAME: [after 1 step, after 2, ..]}}, the root mean square of the change of an activation
// on the first batch since before any step (arXiv 2203.03466, appendix D.1).
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../parallel/wrappers.h"
#include "config/json_text.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace {

using namespace gptrain;
using namespace gptrain::testing;

// Number of heads at every width: heads then grow with the model, so that faults in sums over a head's features show.
constexpr int num_heads = 2;

using Values = std::vector<float>;

// Activations of a step by name, those of all layers in sequence.
class Activations final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using ForwardingBackend::run;

  void run(const EmbeddingForward& op) override {
    inner_.run(op);
    keep("embedding", op.x);
  }
  void run(const NormForward& op) override {
    inner_.run(op);
    if (op.x_out.given()) keep("residual stream", op.x_out);
  }
  void run(const AttentionForward& op) override {
    inner_.run(op);
    keep("queries", op.q);
    keep_scores(op);
    keep("attention", op.o);
  }
  void run(const ActivationForward& op) override {
    inner_.run(op);
    keep("ffn", op.y);
  }
  void run(const CrossEntropy& op) override {
    keep("logits", op.logits.column_range(0, op.vocab_size));  // before the gradient overwrites it
    inner_.run(op);
  }

  std::map<std::string, Values> take() { return std::exchange(values_, {}); }

 private:
  void keep(const std::string& name, const Matrix& x) {
    Values& values = values_[name];
    for (int64_t row = 0; row < x.rows; ++row) {
      const auto* const first = static_cast<const float*>(x.row_range(row, 1).data);
      values.insert(values.end(), first, first + x.cols);
    }
  }

  // Records scores of the first sequence, of each query with the first key: any key would show the sizes of sums.
  void keep_scores(const AttentionForward& op) {
    Values& values = values_["scores"];
    const auto* const keys = static_cast<const float*>(op.k.data);
    for (int64_t row = 0; row < op.sequence_length; ++row) {
      const auto* const queries = static_cast<const float*>(op.q.row_range(row, 1).data);
      double score = 0;
      for (int64_t i = 0; i < op.head_size; ++i) score += static_cast<double>(queries[i]) * keys[i];
      values.push_back(static_cast<float>(score * op.scale));
    }
  }

  std::map<std::string, Values> values_;
};

double distance(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

Json moved(const RunConfig& config, int steps) {
  const auto inner = make_cpu_backend(1);
  Activations backend(*inner);
  OneRank rank(config);
  TrainingStep step(plan_rank({config, inner->target()}).design, backend, rank.groups);
  step.initialize();
  std::map<std::string, Values> first;
  Json by_name = Json::object();
  for (int i = 0; i <= steps; ++i) {
    RandomBatches batches(config);
    step.run(config.optimizer.lr, batches);
    const std::map<std::string, Values> now = backend.take();
    if (i == 0) {
      first = now;
      continue;
    }
    for (const auto& [name, values] : now) by_name[name].push_back(distance(values, first.at(name)));
  }
  return by_name;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const std::string width = arguments[2];
  std::vector<std::string> overrides = {"model.num_layers=2", "model.hidden_size=" + width,
                                        "model.num_heads=" + std::to_string(num_heads),
                                        "model.num_kv_heads=" + std::to_string(num_heads),
                                        "model.ffn_hidden_size=" + std::to_string(3 * std::stoi(width))};
  overrides.insert(overrides.end(), arguments + 4, arguments + count);
  const Family family = std::string(arguments[1]) == "llama" ? Family::llama : Family::gpt2;
  const Json line = {{"width", std::stoi(width)},
                     {"moved", moved(small_config(family, overrides), std::stoi(arguments[3]))}};
  std::printf("%s\n", line.dump().c_str());
}
