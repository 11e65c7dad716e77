// Changes allowed on resume, and the ranks of an elastic run.
#include <fstream>
#include <iterator>
#include <regex>

#include "config/elastic.h"
#include "config/fields.h"
#include "support.h"

namespace gptrain::config_test {

TEST_CASE("resume refuses what changes the model or the training state") {
  const RunConfig saved = parse({});
  CHECK(resume_conflicts({saved, saved}).empty());
  const auto conflicts = [&](const Overrides& overrides) { return resume_conflicts({saved, parse(overrides)}).text(); };
  CHECK(conflicts({"model.num_layers=6", "run.seed=2"}) ==
        "model.num_layers: 12 in the checkpoint, 6 in the config\nrun.seed: 1 in the checkpoint, 2 in the config");
  CHECK(conflicts({"model.norm_eps=1e-6"}) == "model.norm_eps: 1e-05 in the checkpoint, 1e-06 in the config");
  CHECK(conflicts({"optimizer.type=sgd"})
            .starts_with(R"(optimizer.type: "adamw" in the checkpoint, "sgd" in the config)"));
  CHECK(conflicts({R"(data.train=[{"path": "a"}, {"path": "b", "weight": 2}])"}) ==
        "data.train (number of sources): 1 in the checkpoint, 2 in the config");
}

TEST_CASE("the page of checkpoints lists the keys that may change on resume, and no others") {
  std::ifstream file(RESUME_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const size_t begin = page.find("These may change on resume:");
  REQUIRE(begin < page.find("Any other difference is refused"));
  const std::string list = page.substr(begin, page.find("Any other difference is refused") - begin);
  const auto names = [&](const std::string& word) { return list.find("`" + word + "`") != std::string::npos; };
  const auto but = [&](const std::string& word) {
    return std::regex_search(list, std::regex("but\\s+`" + word + "`"));
  };
  for (const Field& field : fields()) {
    if (!field.get) continue;  // a shorthand
    INFO(field.path);
    CHECK(field.may_change == ((names(field.section()) || names(field.path)) && !but(field.path)));
  }
}

TEST_CASE("resume accepts another layout") {
  const RunConfig saved = parse({});
  const RunConfig asked =
      parse({"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3", "batch.micro=2", "batch.accumulation=2"},
            base, 8);
  CHECK(asked.batch.global == saved.batch.global);
  CHECK(asked.batch.micro != saved.batch.micro);
  CHECK(resume_conflicts({saved, asked}).empty());
  CHECK(resume_conflicts({asked, saved}).empty());
  CHECK(resume_conflicts({saved, parse({"batch.micro=1"})}).empty());
}

TEST_CASE("resume accepts what changes neither") {
  const RunConfig asked = parse({R"(data.train=[{"path": "elsewhere"}])",
                                 R"(data.validation=[{"path": "v"}])",
                                 "run.steps=2000",
                                 "run.out=runs/b",
                                 "run.device=cpu",
                                 "run.threads=1",
                                 "run.validate_every_steps=10",
                                 "run.validation_samples=4",
                                 "run.max_skipped_steps=3",
                                 "checkpoint.every_steps=7",
                                 "checkpoint.keep_last=3",
                                 "checkpoint.keep_every=14",
                                 "log.every_steps=5",
                                 "comm.timeout_seconds=5",
                                 "comm.mixed_machines=true",
                                 "comm.compare_every_steps=0",
                                 "optimizer.lr=0.01",
                                 "optimizer.betas=[0.9, 0.99]",
                                 "optimizer.weight_decay=0.2",
                                 "optimizer.clip_norm=2",
                                 "batch.global=32",
                                 "model.dropout=0.1",
                                 "model.z_loss=0.01",
                                 "data.temperature=2",
                                 "schedule.type=wsd",
                                 "schedule.warmup_steps=10",
                                 "schedule.decay_steps=20",
                                 "schedule.min_lr=0.001",
                                 "memory.recompute=every_nth",
                                 "memory.recompute_interval=3"});
  CHECK(resume_conflicts({parse({}), asked}).empty());
  CHECK(
      resume_conflicts({parse({"precision.compute=bf16"}), parse({"precision.compute=bf16", "precision.linears=fp8"})})
          .empty());
  const RunConfig preset = parse({"model.preset=gpt2-124m", "model.vocab_size=257", "model.sequence_length=256"});
  CHECK(resume_conflicts({parse({}), preset}).empty());
}

TEST_CASE("an elastic run takes the most ranks over which its batch divides") {
  const auto elastic = [](int64_t ranks, Overrides overrides) {
    overrides.emplace_back("parallel.elastic=true");
    return parse(overrides, base, ranks);
  };
  struct Expected {
    int64_t started, training, accumulation;
  };
  // A global batch has 16 sequences: 8 micro-batches of 2.
  for (const Expected& expected : {Expected{1, 1, 8}, {2, 2, 4}, {3, 2, 4}, {7, 4, 2}, {8, 8, 1}, {3072, 8, 1}}) {
    const RunConfig config = elastic(expected.started, {"batch.micro=2"});
    CAPTURE(expected.started);
    CHECK(training_ranks(config, expected.started) == expected.training);
    CHECK(config.batch.accumulation == expected.accumulation);
    CHECK(config.batch.global == 16);
    // Reading the text for the training ranks gives the same config, as does the text in a checkpoint.
    CHECK(show_config(parse_config(show_config(config), {}, "shown", expected.training)) == show_config(config));
  }
  const RunConfig in_pairs = elastic(7, {"parallel.tensor=2", "batch.micro=2"});
  CHECK(training_ranks(in_pairs, 7) == 4);
  CHECK(training_ranks(elastic(1, {"parallel.tensor=2"}), 1) == 1);  // no mesh can be made of one rank
  CHECK(training_ranks(parse({"batch.micro=2"}, base, 4), 4) == 4);
  CHECK(training_ranks(elastic(5, {"batch.micro=null"}), 5) == 4);
  CHECK(elastic(5, {"batch.micro=null"}).batch.micro == 4);
  CHECK(fault({"parallel.elastic=true", "batch.accumulation=2"}) ==
        "batch.accumulation = 2: is computed from the number of ranks, as parallel.elastic is true "
        "(try --set batch.accumulation=null or leaving it out)");
  CHECK(fault({"parallel.elastic=true", "batch.micro=3"}) ==
        "batch.micro = 3: must divide batch.global = 16 (try 4 or 2)");
  CHECK(layout_changes(parse({"batch.micro=2"}, base, 4), 4, in_pairs, 4) ==
        "parallel.tensor 1 -> 2, data ranks 4 -> 2, batch.accumulation 2 -> 4; batch.global stays 16");
  CHECK(layout_changes(in_pairs, 4, in_pairs, 4).empty());
}

}  // namespace gptrain::config_test
