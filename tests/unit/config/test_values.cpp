// Faults of single values: types, ranges, words, unknown and missing keys, features that this build lacks.
#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <utility>
#include <variant>

#include "config/aliases.h"
#include "support.h"

namespace gptrain::config_test {

TEST_CASE("a complete config has no faults") { CHECK(fault({}).empty()); }

TEST_CASE("a value of the wrong type is refused") {
  CHECK(fault({"model.num_layers=twelve"}) == R"(model.num_layers = "twelve": must be an integer (try 12))");
  CHECK(fault({"model.num_layers=12.5"}) == "model.num_layers = 12.5: must be an integer (try 12 or 13)");
  CHECK(fault({"model.num_layers={\"a\": 1}"}) == "model.num_layers = {...}: must be an integer (try 12)");
  CHECK(fault({"optimizer.lr=fast"}) == R"(optimizer.lr = "fast": must be a number (try 0.0003))");
  CHECK(fault({"optimizer.lr=nan"}) == R"(optimizer.lr = "nan": must be a number (try 0.0003))");
  CHECK(fault({"model.bias=1"}) == "model.bias = 1: must be true or false (try true)");
  CHECK(
      fault({"run.out=~/run"}) ==
      R"(run.out = "~/run": must not begin with ~ or $, which a shell replaces and a config does not (try "runs/demo"))");
  CHECK(fault({R"(data.train=[{"path": "s3://bucket/x"}])"})
            .starts_with(R"(data.train[0].path = "s3://bucket/x": must be a path in a file system of this machine)"));
  CHECK(fault({"data.tokenizer=$HOME/tokenizer.json"}).starts_with("data.tokenizer = \"$HOME/tokenizer.json\": must"));
  CHECK(fault({"run.out=./~/run"}).empty());
  CHECK(fault({"run.out=7"}) == R"(run.out = 7: must be text (try "runs/demo"))");
  CHECK(fault({"model.norm=3"}) == R"(model.norm = 3: must be one of layernorm, rmsnorm (try "layernorm"))");
  CHECK(fault({"optimizer.betas=0.9"}) == "optimizer.betas = 0.9: must be an array of two numbers (try [0.9,0.95])");
  CHECK(fault({"optimizer.betas=[0.9]"}) ==
        "optimizer.betas = [0.9]: must be an array of two numbers (try [0.9,0.95])");
  CHECK(
      fault({"data.train=data/corpus"}) ==
      R"(data.train = "data/corpus": must be an array of data sources, each an object (try [{"path":"data/corpus"}]))");
  CHECK(refusal(R"({"model": 5})").starts_with("model = 5: must be an object (try {})\n"));
}

TEST_CASE("a value out of range is refused with the nearest bound") {
  CHECK(fault({"model.num_layers=0"}) == "model.num_layers = 0: must be at least 1 and at most 10000 (try 1)");
  CHECK(fault({"model.num_layers=-3"}) == "model.num_layers = -3: must be at least 1 and at most 10000 (try 1)");
  CHECK(fault({"model.num_layers=20000"}) ==
        "model.num_layers = 20000: must be at least 1 and at most 10000 (try 10000)");
  CHECK(fault({"model.vocab_size=2147483648"}) ==
        "model.vocab_size = 2147483648: must be at least 1 and at most 2147483647 (try 2147483647)");
  CHECK(fault({"run.seed=-1"}) == "run.seed = -1: must be at least 0 and at most 18446744073709551615 (try 0)");
  CHECK(fault({"run.seed=18446744073709551616"}) ==
        "run.seed = 1.8446744073709552e+19: must be at least 0 and at most 18446744073709551615 "
        "(try 18446744073709551615)");
  CHECK(fault({"run.steps=1e30"}) ==
        "run.steps = 1e+30: must be at least 1 and at most 1000000000000 (try 1000000000000)");
  CHECK(fault({"optimizer.lr=0"}) == "optimizer.lr = 0: must be greater than 0 and at most 10 (try 0.0003)");
  CHECK(fault({"optimizer.lr=11"}) == "optimizer.lr = 11: must be greater than 0 and at most 10 (try 10)");
  CHECK(fault({"model.dropout=1"}) == "model.dropout = 1: must be at least 0 and less than 1 (try 0.1)");
  CHECK(fault({"model.attention_dropout=-0.5"}) ==
        "model.attention_dropout = -0.5: must be at least 0 and less than 1 (try 0)");
  CHECK(fault({"optimizer.betas=[0.9, 1.5]"}) ==
        "optimizer.betas[1] = 1.5: must be at least 0 and less than 1 (try 0.95)");
  CHECK(fault({"run.out="}) == R"(run.out = "": must not be empty (try "runs/demo"))");
  CHECK(fault({R"(run.out="a\u0000b")"}) == R"(run.out = "a\u0000b": must not hold a NUL character (try "runs/demo"))");
  CHECK(fault({"run.out=\xff"}) == "run.out = \"\xEF\xBF\xBD\": must be UTF-8 (try \"runs/demo\")");
}

TEST_CASE("the bounds themselves are valid") {
  CHECK(parse({"run.seed=18446744073709551615"}).run.seed == UINT64_MAX);
  CHECK(parse({"model.vocab_size=2147483647"}).model.vocab_size == 2147483647);
  CHECK(parse({"optimizer.lr=10"}).optimizer.lr == 10);
  CHECK(parse({"run.steps=1e4"}).run.steps == 10000);
}

TEST_CASE("an unknown word is refused with the nearest one") {
  CHECK(fault({"model.norm=rms_norm"}) ==
        R"(model.norm = "rms_norm": must be one of layernorm, rmsnorm (try "rmsnorm"))");
  CHECK(
      fault({"model.activation=gelu_tan"}) ==
      R"(model.activation = "gelu_tan": must be one of gelu_tanh, gelu, swiglu, geglu, geglu_tanh (try "gelu_tanh"))");
  CHECK(
      fault({"memory.recompute=every"}) ==
      R"(memory.recompute = "every": must be one of none, selective, ffn, block, every_nth, optimal (try "every_nth"))");
  for (const char* module : {"mlp", "moe"})
    CHECK(fault({std::string("memory.recompute=") + module}).ends_with(R"((try "ffn"))"));
  CHECK(
      fault({"model.preset=gpt2-125m"}) ==
      R"(model.preset = "gpt2-125m": must be one of the 42 names that `gptrain config schema` lists (try "gpt2-124m"))");
}

TEST_CASE("an unknown key is refused with the nearest one") {
  CHECK(fault({"model.num_layer=12"}) == "model.num_layer = 12: unknown key (try model.num_layers)");
  CHECK(fault({"modle.num_layers=12"}) == "modle.num_layers = 12: unknown key (try model.num_layers)");
  CHECK(fault({"run.st=12"}) == "run.st = 12: unknown key (try run.steps)");
  CHECK(fault({"gbs=12"}) == "gbs = 12: unknown key (try batch.global)");
  CHECK(fault({"model.lr=12"}) == "model.lr = 12: unknown key (try optimizer.lr)");
  CHECK(fault({"steps=10"}) == "steps = 10: unknown key (try run.steps)");
  CHECK(fault({"data.train.path=x"}) == R"(data.train.path = "x": unknown key (try data.train))");
  CHECK(refusal(R"({"modle": {"num_layers": 12}})").starts_with("modle = {...}: unknown section (try model)\n"));
  CHECK(refusal(R"({"run": {"step": 5}, "lr": 1})")
            .starts_with("run.step = 5: unknown key (try run.steps)\nlr = 1: unknown key (try optimizer.lr)\n"));
}

TEST_CASE("what other trainers call a key is answered with ours") {
  CHECK(fault({"optimizer.learning_rate=1"}) == "optimizer.learning_rate = 1: unknown key (try optimizer.lr)");
  CHECK(fault({"learning-rate=1"}) == "learning-rate = 1: unknown key (try optimizer.lr)");
  CHECK(fault({"Model.N_Embd=1"}) == "Model.N_Embd = 1: unknown key (try model.hidden_size)");
  CHECK(fault({"model.block_size=1"}) == "model.block_size = 1: unknown key (try model.sequence_length)");
  CHECK(fault({"batch_size=1"}) == "batch_size = 1: unknown key (try batch.global or batch.micro)");
  CHECK(fault({"checkpoint.interval=1"}) == "checkpoint.interval = 1: unknown key (try checkpoint.every_steps)");
  CHECK(fault({"optimizer.params.lr=1"}) == "optimizer.params.lr = 1: unknown key (try optimizer.lr)");
  CHECK(fault({"optimizer.params.beta1=1"}) == "optimizer.params.beta1 = 1: unknown key (try optimizer.betas)");
  CHECK(fault({"parallelism.pipeline_parallel_schedule=x"}).ends_with("unknown key (try parallel.pipeline_schedule)"));
  CHECK(fault({"activation_checkpoint.mode=x"}).ends_with("unknown key (try memory.recompute)"));
  CHECK(fault({"parallel.ring_attention=true"}).ends_with(R"(unknown key (try parallel.context_method = "ring"))"));
  CHECK(fault({"fp16=true"}) == R"(fp16 = true: unknown key (try precision.compute = "fp16"))");
  CHECK(refusal(R"({"optimizer": {"params": 1, "grad_clip": 1}, "training": {}, "zero_optimization": {"stage": 1}})")
            .starts_with(
                R"(optimizer.params = 1: unknown key, and gptrain has none like it (`gptrain config keys` lists all)
optimizer.grad_clip = 1: unknown key (try optimizer.clip_norm)
training = {}: unknown section (try run)
zero_optimization = {...}: unknown section (try parallel.zero)
)"));
}

TEST_CASE("a key that gptrain has not is answered with the reason, and with no key that is not near") {
  for (const auto& [setting, words] :
       {std::pair{"batch.rampup_batch_size=2", "unknown key; gptrain has no ramp of the batch"},
        {"model.use_flash_attn=true", "unknown key; attention is always fused"},
        {"run.report_to=wandb", "unknown key; gptrain always writes metrics.jsonl and tb/"},
        {"model.zzzzqqq=1", "unknown key, and gptrain has none like it"},
        {"parallel.dp=8", "unknown key; the number of data ranks follows"},
        {"ru=1", "unknown key, and gptrain has none like it"},
        {"data.x=1", "unknown key, and gptrain has none like it"},
        {"train.=1", "unknown key, and gptrain has none like it"},
        {"zzzzqqq=1", "unknown key, and gptrain has none like it"}}) {
    INFO(setting);
    CHECK(fault({setting}).find(words) != std::string::npos);
    CHECK(fault({setting}).find("(try ") == std::string::npos);
  }
  CHECK(fault({R"(parallel={"tensor": 2})"})
            .starts_with("parallel = {...}: is a section, whose keys are set one by one (try --set parallel."));
  CHECK(refusal(R"({"weights_and_biases": {"x": 1}})")
            .starts_with("weights_and_biases = {...}: unknown section, and gptrain has none like it (`gptrain config "
                         "keys` lists all)\n"));
}

TEST_CASE("keys of torchtitan and of the HF Trainer are answered with ours") {
  for (const auto& [setting, ours] : {std::pair{"training.local_batch_size=1", "batch.micro"},
                                      {"model.num_local_experts=8", "model.moe"},
                                      {"parallelism.expert_parallel_degree=2", "parallel.expert"},
                                      {"parallelism.data_parallel_shard_degree=1", "parallel.zero"},
                                      {"lr_scheduler.min_lr_factor=1", "schedule.min_lr"},
                                      {"checkpoint.keep_latest_k=1", "checkpoint.keep_last"},
                                      {"job.dump_folder=x", "run.out"},
                                      {"save_strategy=steps", "checkpoint.every_steps"},
                                      {"ddp_timeout=5", "comm.timeout_seconds"}}) {
    INFO(setting);
    CHECK(fault({setting}).ends_with(std::string("unknown key (try ") + ours + ")"));
  }
}

TEST_CASE("keys of other trainers lead to our key, or to the sentence that says what does their work") {
  for (const auto& [setting, answer] :
       {std::pair{"train_samples=1", "; a run has run.steps steps"},
        {"checkpoint.resume=1", "; --resume goes on from a checkpoint"},
        {"run.resume=latest", "; --resume goes on from a checkpoint"},
        {"batch.drop_last=true", "; batches have batch.global samples each"},
        {"dataloader_drop_last=true", "; batches have batch.global samples each"},
        {"global_train_batch_size=8", " (try batch.global)"},
        {"device_train_microbatch_size=8", " (try batch.micro)"},
        {"total_batch_size=8", " (try batch.global)"},
        {"moe_ffn_hidden_size=8", "; model.moe has all settings of experts"},
        {"mtp_num_layers=1", "; gptrain predicts the next token alone"},
        {"vocab_file=x", "; texts are turned into token files by `gptrain data pack`"},
        {"lr_decay_iters=5", "; the decay of schedule.type linear and cosine always ends with run.steps"},
        {"wandb_run_id=x", "; gptrain always writes metrics.jsonl and tb/"},
        {"tensorboard_dir=x", "; gptrain always writes metrics.jsonl and tb/"},
        {"cuda_graph_scope=x", "; gptrain compiles nothing"},
        {"callbacks=1", "; gptrain always writes metrics.jsonl"},
        {"model.alibi=true", "; model.positions are learned or rope"},
        {"parallel.model=2", "; the number of data ranks follows"},
        {"parallel.data=2", "; the number of data ranks follows"},
        {"model.hidden_dropout_prob=0.1", " (try model.residual_dropout)"},
        {"attention_probs_dropout_prob=0.1", " (try model.attention_dropout)"},
        {"model.attention_window_size=8", " (try model.attention_window)"},
        {"virtual_pipeline_model_parallel_size=2", " (try parallel.virtual_stages)"},
        {"embedding_path=x", ", and gptrain has none like it"},
        {"mode=x", ", and gptrain has none like it"},
        {"model.hiden_sise=8", " (try model.hidden_size)"},
        {"run.sede=8", ", and gptrain has none like it"},
        {"run.sed=8", " (try run.seed)"},
        {"run.setps=8", " (try run.steps)"}}) {
    INFO(setting);
    CHECK(fault({setting}).find(std::string("unknown key") + answer) != std::string::npos);
  }
}

TEST_CASE("a short try of a run is offered --steps first") {
  CHECK(fault({"run.steps=5", "schedule.warmup_steps=10"})
            .starts_with("to try a run's first 5 steps, leave run.steps as it is and give train --steps 5, which keeps "
                         "the schedule"));
  for (const Overrides& too_late :
       {Overrides{"schedule.type=wsd", "schedule.decay_steps=5", "run.steps=4"},
        Overrides{"optimizer.type=onebit-adam", "optimizer.freeze_step=9", "run.steps=4"},
        Overrides{R"(parallel.local_steps={"islands": 2, "every": 2, "start_step": 6})", "run.steps=4"},
        Overrides{R"(comm.compression={"kind": "int8", "start_step": 6})", "run.steps=4"}}) {
    INFO(too_late.front());
    CHECK(fault(too_late).starts_with(
        "to try a run's first 4 steps, leave run.steps as it is and give train --steps 4, "));
  }
  CHECK(fault({"schedule.warmup_steps=1001"}).starts_with("schedule.warmup_steps"));
  CHECK(fault({"run.steps=0"}).starts_with("run.steps = 0: must be at least"));
}

TEST_CASE("what other trainers call a value is answered with ours") {
  for (const auto& [setting, ours] : {std::pair{"run.device=gpu", "cuda"},
                                      {"memory.recompute=full", "block"},
                                      {"memory.recompute=off", "none"},
                                      {"schedule.type=constant-with-warmup", "constant"},
                                      {"schedule.type=none", "constant"},
                                      {"precision.compute=bfloat16", "bf16"},
                                      {"precision.compute=Float32", "fp32"},
                                      {"precision.residual=half", "fp16"},
                                      {"model.norm=LayerNorm", "layernorm"},
                                      {"model.norm=rms_norm", "rmsnorm"},
                                      {"model.activation=gelu_new", "gelu_tanh"},
                                      {"model.activation=silu", "swiglu"}}) {
    CHECK(fault({setting}).ends_with(fmt::format(" (try \"{}\")", ours)));
  }
  CHECK(fault({"precision.reduce=half"}).ends_with("must be one of fp32, bf16 (try \"fp32\")"));
}

TEST_CASE("every alias leads to one key, section or word of ours, and is none itself") {
  std::set<std::string> names;
  for (const Aliases& row : key_aliases()) {
    for (std::string rest = row.ours; !rest.empty();) {
      const size_t end = std::min(rest.find(" or "), rest.size());
      const std::string one = rest.substr(0, end);
      rest.erase(0, std::min(end + 4, rest.size()));
      const size_t equals = one.find(" = ");
      INFO(one);
      const Field* field = find_field(one.substr(0, equals));
      REQUIRE(field != nullptr);
      if (equals == std::string::npos) continue;
      Faults faults;
      check_value(field->rule, field->path, Json::parse(one.substr(equals + 3)), field->example, faults);
      CHECK(faults.empty());
    }
    for (const std::string& name : row.names) {
      INFO(name);
      CHECK(names.insert(name).second);
      CHECK(key_meant("", name) == row.ours);
      for (const Field& field : fields()) CHECK(field.key() != name);
    }
  }
  for (const Aliases& row : absent_keys()) {
    for (const std::string& name : row.names) {
      INFO(name);
      CHECK(names.insert(name).second);
      for (const Field& field : fields()) CHECK(key_absent("", field.key()).empty());
    }
  }
  const std::vector<std::string> sections = section_names();
  const auto is_section = [&](const std::string& name) {
    return std::find(sections.begin(), sections.end(), name) != sections.end();
  };
  for (const Aliases& row : section_aliases()) {
    CHECK(is_section(row.ours));
    for (const std::string& name : row.names) CHECK_FALSE(is_section(name));
  }
  for (const Aliases& row : word_aliases()) {
    CHECK(std::any_of(fields().begin(), fields().end(), [&](const Field& field) {
      const auto* rule = std::get_if<WordRule>(&field.rule);
      return rule != nullptr && std::find(rule->words.begin(), rule->words.end(), row.ours) != rule->words.end();
    }));
  }
}

TEST_CASE("a list of weights and prefixes is answered with the sources that it means") {
  const auto answer = [](const std::string& list) {
    const std::string text = fault({"data.train=" + list});
    const size_t at = text.find("must be an array of data sources, each an object (try ");
    return at == std::string::npos ? std::string() : text.substr(text.find("(try ", at));
  };
  for (const std::string list : {R"("30 a 0.5 b/c")", R"(["30", "a", "0.5", "b/c"])", R"([30, "a", 0.5, "b/c"])"})
    CHECK(answer(list) == R"((try [{"path":"a","weight":30},{"path":"b/c","weight":0.5}]))");
  CHECK(answer(R"(["a", "b"])") == R"((try [{"path":"a"},{"path":"b"}]))");
  CHECK(answer('"' + std::string(5000, 'x') + '"') == R"((try [{"path": "data/corpus/train"}]))");
  for (const std::string other : {"7", "[1]", R"(["1", "a", "b"])", "[[]]", "{}"}) CHECK(answer(other).empty());
  CHECK(fault({R"(data.train=[{"path": "x", "dtype": "i32"}])"}) ==
        R"(data.train[0].dtype = "i32": must be one of auto, u16, u32 (try "u32"))");
}

TEST_CASE("data sources are checked key by key") {
  CHECK(fault({"data.train=[]"}) ==
        R"(data.train = []: must hold at least one data source (try [{"path": "data/corpus/train"}]))");
  CHECK(fault({R"(data.train=[{"path": "y"}, "x"])"}) ==
        R"(data.train[1] = "x": must be an object with path and weight (try {"path": "data/corpus/train"}))");
  CHECK(fault({R"(data.train=[{"path": "x"}, {"wieght": 2, "path": ""}, {"weight": 0}])"}) ==
        R"(data.train[1].wieght = 2: unknown key (try data.train[1].weight)
data.train[1].path = "": must not be empty (try "data/corpus/train")
data.train[2].weight = 0: must be greater than 0 and at most 1000000000 (try 1)
data.train[2].path: must be given (try "data/corpus/train"))");
  CHECK(parse({"data.validation=[]"}).data.validation.empty());
  const RunConfig config = parse({R"(data.train=[{"path": "a"}, {"path": "b", "weight": 2.5}])"});
  REQUIRE(config.data.train.size() == 2);
  CHECK(config.data.train[0].path == "a");
  CHECK(config.data.train[0].weight == 1);
  CHECK(config.data.train[1].path == "b");
  CHECK(config.data.train[1].weight == 2.5);
}

TEST_CASE("every required key is asked for") {
  CHECK(refusal("{}") ==
        R"(model.num_layers: must be given, here or by model.preset (try 12)
model.hidden_size: must be given, here or by model.preset (try 768)
model.num_heads: must be given, here or by model.preset (try 12)
model.vocab_size: must be given, here or by model.preset (try 50257)
model.sequence_length: must be given, here or by model.preset (try 1024)
data.train: must be given (try [{"path": "data/corpus/train"}])
optimizer.lr: must be given (try 0.0003)
run.steps: must be given (try 1000)
run.out: must be given (try "runs/demo")
batch.global: must be given, or both batch.micro and batch.accumulation (try 16))");
  CHECK(fault({"schedule.type=wsd"}) == "schedule.decay_steps: must be given, as schedule.type is wsd (try 100)");
  CHECK(fault({"memory.recompute=optimal", "memory.activation_budget=most"}) ==
        R"(memory.activation_budget = "most": must be an integer or "fit" (try 8000000000))");
  CHECK(fault({"memory.recompute=optimal", "memory.activation_budget=0"}) ==
        "memory.activation_budget = 0: must be at least 1 and at most 1125899906842624 (try 1)");
  CHECK(
      fault({"memory.offload_activations=some"}) ==
      R"(memory.offload_activations = "some": must be an integer or one of none, hidden, all, optimal (try "hidden"))");
  CHECK(fault({"memory.offload_activations=0"}) ==
        "memory.offload_activations = 0: must be at least 1 and at most 10000 (try 1)");
  CHECK(fault({"memory.recompute=every_nth"}) ==
        "memory.recompute_interval: must be given, as memory.recompute is every_nth (try 2)");
}

TEST_CASE("what this build does not have is refused with the reason") {
  CHECK(
      fault({"precision.compute=fp8"}) ==
      R"(precision.compute = "fp8": fp8 is for the linears of blocks only, whose key is precision.linears (try "bf16"))");
  CHECK(fault({"precision.reduce=fp16"}) ==
        R"(precision.reduce = "fp16": sums of gradients leave the range of fp16 (try "bf16"))");
}

TEST_CASE("the mesh's sizes have ranges") {
  CHECK(fault({"parallel.tensor=0"}) == "parallel.tensor = 0: must be at least 1 and at most 65536 (try 1)");
  CHECK(fault({"parallel.zero=4"}) == "parallel.zero = 4: must be at least 0 and at most 3 (try 3)");
  CHECK(fault({"parallel.zero=-1"}) == "parallel.zero = -1: must be at least 0 and at most 3 (try 0)");
  CHECK(fault({"parallel.sequence=1"}) == "parallel.sequence = 1: must be true or false (try false)");
}

TEST_CASE("an override must name a key and a value") {
  CHECK(fault({"run.steps"}) == "--set run.steps: must have the form key.path=value (try --set run.steps=1000)");
  CHECK(fault({"=5"}) == "--set =5: must have the form key.path=value (try --set run.steps=1000)");
  CHECK(parse({"run.steps=5", "run.steps=7"}).run.steps == 7);
  CHECK(parse({"run.out=runs/a b"}).run.out == "runs/a b");
  CHECK(parse({"run.out=\"runs/c\""}).run.out == "runs/c");
  CHECK(parse({"run.out=a=b"}).run.out == "a=b");
}

TEST_CASE("an override of null takes out a key or a section") {
  CHECK(parse({"batch.micro=null"}).batch.micro == 8);
  CHECK(parse({"batch.global=4", "batch.micro=null"}).batch.micro == 4);
  CHECK(parse({"run.seed=5", "run.seed=null"}).run.seed == RunConfig{}.run.seed);
  CHECK(parse({"run.seed=null", "run.seed=5"}).run.seed == 5);
  CHECK(parse({"comm.timeout_seconds=null", "log=null"}).comm.timeout_seconds == RunConfig{}.comm.timeout_seconds);
  CHECK(parse({"run.out=\"null\""}).run.out == "null");
  CHECK(fault({"model.num_layers=null"}) == "model.num_layers: must be given, here or by model.preset (try 12)");
  CHECK(fault({"run.step=null"}) == "run.step = null: unknown key (try run.steps)");
  CHECK(fault({"optimiser=null"}).starts_with("optimiser = null: unknown key"));
  CHECK(fault({"batch=null"}) == "batch.global: must be given, or both batch.micro and batch.accumulation (try 16)");
  CHECK(parse({"model=null", "model.preset=gpt2-355m"}).model.num_layers == 24);
  std::string text = base;
  text.replace(text.find("12,"), 2, "null");
  CHECK(refusal(text) == "model.num_layers = null: must be an integer (try 12)");
  CHECK(refusal(text, {"model.num_layers=null"}) ==
        "model.num_layers: must be given, here or by model.preset (try 12)");
  text = base;
  text.insert(text.rfind('}'), R"(, "log": null)");
  CHECK(refusal(text, {"log.every_steps=3"}) == "log = null: must be an object (try {})");
  CHECK(parse({"log=null"}, text).log.every_steps == RunConfig{}.log.every_steps);
}

TEST_CASE("an override of null leaves a key to the preset") {
  const Overrides llama = {"model.preset=llama-70b"};
  const ModelConfig model =
      parse({llama[0], "model.num_kv_heads=4", "model.num_kv_heads=null", "model.norm=null"}, without_model).model;
  CHECK(model.num_kv_heads == 8);
  CHECK(model.norm == NormKind::rmsnorm);
  CHECK(parse({llama[0], "model.preset=null"}).model.num_layers == 12);
}

TEST_CASE("an unknown preset is one fault, whatever it leaves open") {
  const std::string fault =
      R"(model.preset = "llama-71b": must be one of the 42 names that `gptrain config schema` lists (try "llama-1b"))";
  CHECK(refusal(without_model, {"model.preset=llama-71b"}) == fault);
  CHECK(refusal(without_model, {"model.preset=llama-71b", "model.rope_theta=5", "parallel.tensor=2",
                                "model.num_kv_heads=2", "precision.compute=bf16", "precision.linears=fp8"}) == fault);
}

TEST_CASE("an override may name an element of a list") {
  const std::string two = R"(data.train=[{"path": "a", "weight": 2}, {"path": "b"}])";
  const auto sources = parse({two, "data.train[1].path=c", "data.train[1].weight=3", "data.train[0].weight=null"}).data;
  CHECK(sources.train[0].path == "a");
  CHECK(sources.train[0].weight == 1);
  CHECK(sources.train[1].path == "c");
  CHECK(sources.train[1].weight == 3);
  CHECK(parse({"data.train[0].path=x"}).data.train[0].path == "x");
  CHECK(parse({R"(data.train[0]={"path": "y"})"}).data.train[0].path == "y");
  CHECK(parse({two, "data.train[0]=null"}).data.train.at(0).path == "b");
  CHECK(parse({"optimizer.betas=[0.5, 0.6]", "optimizer.betas[1]=0.7"}).optimizer.beta2 == 0.7);
  CHECK(fault({"data.train[0].wieght=2"}) == "data.train[0].wieght = 2: unknown key (try data.train[0].weight)");
  CHECK(fault({"data.train[0].path=3"}) == R"(data.train[0].path = 3: must be text (try "data/corpus/train"))");
  CHECK(fault({R"(data.train=[{"path": "y"}, "x"])", "data.train[1].path=y"})
            .starts_with("data.train[1] = \"x\": must be an object"));
  const auto none = [](const std::string& path, const std::string& count) {
    return fmt::format(R"({} = "x": names no element of data.train; the config's list has {} (try the whole value: )"
                       R"(--set 'data.train=[{{"path": "data/corpus/train"}}]'))",
                       path, count);
  };
  for (const char* path : {"data.train[1].path", "data.train[].path", "data.train[-1].path", "data.train[0]path",
                           "data.train[0].", "data.train[", "data.train[99999999999999999999]"}) {
    CHECK(fault({fmt::format("{}=x", path)}) == none(path, "1 element"));
  }
  CHECK(fault({"data.train=corpus", "data.train[0].path=x"}).starts_with(none("data.train[0].path", "0 elements")));
  CHECK(fault({"run.steps[0]=1"})
            .starts_with("run.steps[0] = 1: names no element of run.steps; the config's list has 0 elements (try "));
  CHECK(fault({"data.trian[0].path=x"}).starts_with("data.trian[0].path = \"x\": unknown key (try "));
}

TEST_CASE("pipelines that a model cannot be cut into are refused") {
  CHECK(fault({"model.num_layers=12", "parallel.pipeline=13"}) ==
        "parallel.pipeline = 13: must be at most model.num_layers = 12 (try 12)");
  CHECK(fault({"model.num_layers=12", "parallel.pipeline=5", "parallel.pipeline_schedule=interleaved",
               "parallel.virtual_stages=3"}) ==
        "parallel.pipeline = 5: times parallel.virtual_stages = 3 must be at most model.num_layers = 12 (try 4)");
  CHECK(fault({"model.num_layers=1", "parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble-v"}) ==
        "parallel.pipeline = 2: times parallel.virtual_stages = 2 must be at most model.num_layers = 1 (try 1)");
  for (const std::string schedule : {"gpipe", "1f1b", "varuna", "zero-bubble"}) {
    CHECK(fault({"parallel.pipeline=2", "parallel.pipeline_schedule=" + schedule, "parallel.virtual_stages=2"}) ==
          "parallel.virtual_stages = 2: must be 1 with parallel.pipeline_schedule = " + schedule + " (try 1)");
  }
  CHECK(fault({"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=1"}) ==
        "parallel.virtual_stages = 1: must be at least 2 with parallel.pipeline_schedule = interleaved (try 2)");
  CHECK(fault({"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble-v", "parallel.virtual_stages=3"}) ==
        "parallel.virtual_stages = 3: must be 2 with parallel.pipeline_schedule = zero-bubble-v (try 2)");
  CHECK(fault({"parallel.pipeline=2", "parallel.pipeline_schedule=dual"})
            .find(R"(parallel.pipeline_schedule = "dual": must be one of 1f1b, gpipe, interleaved, varuna, )") == 0);
  CHECK(fault({"parallel.pipeline=0"}).find("parallel.pipeline = 0: must be at least 1") == 0);
}

TEST_CASE("layers that do not make the model's are refused") {
  const auto placed = [](const std::string& layers) {
    return fault({"model.num_layers=12", "parallel.pipeline=3", "parallel.layers_per_stage=" + layers});
  };
  CHECK(placed("[4,4,4]").empty());
  CHECK(placed("[0,12,0]").empty());
  CHECK(placed("[]").empty());
  CHECK(placed("[6,6]") ==
        "parallel.layers_per_stage = [6,6]: must have one number for each of parallel.pipeline * "
        "parallel.virtual_stages = 3 chunks (try [])");
  CHECK(placed("[6,0,6]") ==
        "parallel.layers_per_stage = [6,0,6]: may have 0 as its first and its last number only (try [])");
  CHECK(placed("[4,4,5]") ==
        "parallel.layers_per_stage = [4,4,5]: adds up to 13, must add up to model.num_layers = 12 (try [])");
  CHECK(placed("[4,-4,12]") != "");
  CHECK(placed("[4,4.5,4]") != "");
  CHECK(placed("4") != "");
  CHECK(placed("[9223372036854775807,9223372036854775807,14]") != "");
}

TEST_CASE("what only pipelines have a use for is refused without one") {
  for (const std::string key :
       {"parallel.virtual_stages=2", "parallel.pipeline_schedule=gpipe", "parallel.layers_per_stage=[12]"}) {
    const std::string text = fault({key});
    INFO(text);
    CHECK(text.find(key.substr(0, key.find('='))) == 0);
    CHECK(text.find("has no effect unless parallel.pipeline is greater than 1") != std::string::npos);
  }
}

}  // namespace gptrain::config_test
