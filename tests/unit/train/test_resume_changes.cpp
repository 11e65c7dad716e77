// Changes of a config between a checkpoint and the run that resumes it.
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/load.h"
#include "model_fixture.h"
#include "train/resume_changes.h"

using namespace gptrain;

TEST_CASE("a phase of the mixture that is over at the checkpoint is refused, unless the run had it") {
  const auto with_phases = [](const std::string& phases) {
    return testing::small_config(testing::Family::gpt2,
                                 {R"(data.train=[{"path": "a"}, {"path": "b"}])", "data.phases=" + phases});
  };
  const auto change = [&](const std::string& saved, const std::string& asked) {
    Manifest manifest;
    manifest.progress.step = 18;
    const RunConfig before = with_phases(saved), after = with_phases(asked);
    return config_changes({before, after}, manifest, {});
  };
  const std::string passed = R"([{"until_step": 12, "weights": [0, 1]}])";
  const std::string refusal =
      "data.phases[0] ends at step 12, and the checkpoint is of step 18: a phase that is over changes nothing; leave "
      "it "
      "out, or give it a later until_step";
  CHECK_THROWS_WITH(change("[]", passed), refusal);
  CHECK_THROWS_WITH(change(R"([{"until_step": 12, "weights": [1, 1]}])", passed), refusal);
  CHECK(change(passed, passed).empty());
  CHECK(change(passed, R"([{"until_step": 12, "weights": [0, 1]}, {"until_step": 30, "weights": [1, 1]}])").size() ==
        1);
  CHECK(change("[]", R"([{"until_step": 19, "weights": [1, 1]}])").size() == 1);
}
