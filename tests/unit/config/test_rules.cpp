// Faults between keys, derived values, and changes allowed on resume.
#include <fmt/format.h>

#include "config/context_method.h"
#include "config/fields.h"
#include "support.h"

namespace gptrain::config_test {

TEST_CASE("heads divide the hidden size") {
  CHECK(fault({"model.num_heads=5"}) == "model.num_heads = 5: must divide model.hidden_size = 768 (try 6 or 4)");
  CHECK(fault({"model.num_heads=1000"}) == "model.num_heads = 1000: must divide model.hidden_size = 768 (try 768)");
  CHECK(fault({"model.num_heads=5", "model.num_kv_heads=3"}) ==
        "model.num_heads = 5: must divide model.hidden_size = 768 (try 6 or 3)");
}

TEST_CASE("rope needs an even head size") {
  CHECK(fault({"model.num_heads=256"}).empty());
  CHECK(fault({"model.num_heads=256", "model.positions=rope"}) ==
        "model.num_heads = 256: must leave an even head size for model.positions = rope, not 768 / 256 = 3 "
        "(try 384 or 192)");
}

TEST_CASE("key and value heads divide the heads") {
  CHECK(parse({}).model.num_kv_heads == 12);
  CHECK(parse({"model.num_kv_heads=4"}).model.num_kv_heads == 4);
  CHECK(fault({"model.num_kv_heads=5"}) == "model.num_kv_heads = 5: must divide model.num_heads = 12 (try 6 or 4)");
  CHECK(fault({"model.num_kv_heads=24"}) == "model.num_kv_heads = 24: must divide model.num_heads = 12 (try 12)");
}

TEST_CASE("room for documents is at most a sequence's tokens, and for masked documents") {
  CHECK(parse({"data.mask_documents=true"}).data.max_documents == 0);
  CHECK(parse({"data.mask_documents=true", "data.max_documents=256"}).data.max_documents == 256);
  CHECK(fault({"data.mask_documents=true", "data.max_documents=257"}) ==
        "data.max_documents = 257: must be at most model.sequence_length = 256 (try 256)");
  CHECK(fault({"data.max_documents=8"}) ==
        "data.max_documents = 8: has no effect unless data.mask_documents is true "
        "(try --set data.max_documents=null or leaving it out)");
}

TEST_CASE("the width of the MLP follows from the activation") {
  CHECK(parse({}).model.ffn_hidden_size == 4 * 768);
  CHECK(parse({"model.activation=swiglu"}).model.ffn_hidden_size == 2048);
  CHECK(parse({"model.activation=swiglu", "model.hidden_size=1020"}).model.ffn_hidden_size == 2752);
  CHECK(parse({"model.activation=swiglu", "model.ffn_hidden_size=7"}).model.ffn_hidden_size == 7);
}

TEST_CASE("dropout sets both kinds and excludes them") {
  const RunConfig config = parse({"model.dropout=0.25"});
  CHECK(config.model.residual_dropout == 0.25);
  CHECK(config.model.attention_dropout == 0.25);
  CHECK(fault({"model.dropout=0.25", "model.residual_dropout=0.1"}) ==
        "model.residual_dropout = 0.1: is also set by model.dropout (try leaving one of them out)");
  CHECK(fault({"model.dropout=0.25", "model.attention_dropout=0.1"}) ==
        "model.attention_dropout = 0.1: is also set by model.dropout (try leaving one of them out)");
}

std::string with_batch(const std::string& batch) {
  std::string text = base;
  const std::string old = R"({"global": 16, "micro": 8})";
  return text.replace(text.find(old), old.size(), batch);
}

TEST_CASE("the batch follows from any sufficient subset") {
  const auto check = [](const std::string& batch, int64_t global, int64_t micro, int64_t accumulation) {
    INFO(batch);
    const BatchConfig config = parse({}, with_batch(batch)).batch;
    CHECK(config.global == global);
    CHECK(config.micro == micro);
    CHECK(config.accumulation == accumulation);
  };
  check(R"({"global": 16})", 16, 8, 2);
  check(R"({"global": 21})", 21, 7, 3);
  check(R"({"global": 13})", 13, 1, 13);
  check(R"({"global": 3})", 3, 3, 1);
  check(R"({"global": 16, "micro": 2})", 16, 2, 8);
  check(R"({"global": 16, "accumulation": 16})", 16, 1, 16);
  check(R"({"micro": 3, "accumulation": 5})", 15, 3, 5);
  check(R"({"global": 15, "micro": 3, "accumulation": 5})", 15, 3, 5);
}

TEST_CASE("a batch that does not come out is refused") {
  const std::string missing = "batch.global: must be given, or both batch.micro and batch.accumulation (try 16)";
  CHECK(refusal(with_batch("{}")) == missing);
  CHECK(refusal(with_batch(R"({"micro": 3})")) == missing);
  CHECK(refusal(with_batch(R"({"accumulation": 3})")) == missing);
  CHECK(fault({"batch.micro=3"}) == "batch.micro = 3: must divide batch.global = 16 (try 4 or 2)");
  CHECK(fault({"batch.micro=32"}) == "batch.micro = 32: must divide batch.global = 16 (try 16)");
  CHECK(refusal(with_batch(R"({"global": 16, "accumulation": 5})")) ==
        "batch.accumulation = 5: must divide batch.global = 16 (try 8 or 4)");
  CHECK(fault({"batch.accumulation=4"}) ==
        "batch.accumulation = 4: must be batch.global / batch.micro = 16 / 8 (try 2)");
  CHECK(refusal(with_batch(R"({"micro": 1000000, "accumulation": 1000})")) ==
        "batch.accumulation = 1000: times batch.micro = 1000000 must be at most 16777216 (try 16)");
}

TEST_CASE("a batch that a fault elsewhere leaves open is no crash") {
  CHECK(refusal(with_batch("{}"), {"parallel.tensor=65536", "precision.linears=fp8"})
            .starts_with("parallel.tensor = 65536"));
}

TEST_CASE("what cannot be is refused before anything multiplies it") {
  CHECK(fault({"batch.global=16777216", "batch.micro=1"}) ==
        "batch.micro = 1: leaves 16777216 micro-batches a step, must be at most 299593 with model.num_layers = 12 (try "
        "64)");
  CHECK(
      fault({"batch.global=299594", "batch.micro=1"}) ==
      "batch.micro = 1: leaves 299594 micro-batches a step, must be at most 299593 with model.num_layers = 12 (try 2)");
  CHECK(parse({"batch.global=299593", "batch.micro=1"}).batch.accumulation == 299593);
  const Overrides wide = {"model.hidden_size=1048576", "model.num_heads=16", "model.ffn_hidden_size=4194304"};
  const auto with = [&](Overrides more) {
    more.insert(more.begin(), wide.begin(), wide.end());
    return fault(more);
  };
  CHECK(with({}).empty());
  CHECK(
      with({"model.num_layers=10000", "batch.micro=1"}).starts_with("model.hidden_size = 1048576: makes the weights"));
  CHECK(with({"model.num_layers=1000", "model.sequence_length=2047", "batch.global=1048576", "batch.micro=1048576"})
            .ends_with("makes activations larger than 2^63 bytes"));
  CHECK(fault({"model.vocab_size=2147483647", "memory.loss_chunk_tokens=16777216", "batch.micro=1"}).empty());
}

TEST_CASE("the batch is shared by the data ranks") {
  const auto check = [](const Overrides& overrides, int64_t world_size, int64_t global, int64_t micro,
                        int64_t accumulation) {
    INFO((overrides.empty() ? "" : overrides.back()) << " on " << world_size << " ranks");
    const BatchConfig config = parse(overrides, with_batch("{}"), world_size).batch;
    CHECK(config.global == global);
    CHECK(config.micro == micro);
    CHECK(config.accumulation == accumulation);
  };
  check({"batch.global=48"}, 3, 48, 8, 2);
  check({"batch.global=48"}, 6, 48, 8, 1);
  check({"batch.global=48", "parallel.tensor=2"}, 6, 48, 8, 2);
  check({"batch.global=48", "batch.micro=2"}, 3, 48, 2, 8);
  check({"batch.global=48", "batch.accumulation=4"}, 3, 48, 4, 4);
  check({"batch.micro=3", "batch.accumulation=5"}, 4, 60, 3, 5);
  check({"batch.micro=3", "batch.accumulation=5", "parallel.tensor=2"}, 4, 30, 3, 5);
  check({"batch.global=60", "batch.micro=3", "batch.accumulation=5"}, 4, 60, 3, 5);
  // Six ranks do not divide by four: the mesh reports that, not the batch.
  check({"batch.global=48", "parallel.tensor=4"}, 6, 48, 8, 6);
}

TEST_CASE("a batch that does not come out over the data ranks is refused") {
  const auto refused = [](const Overrides& overrides, int64_t world_size) {
    return refusal(base, overrides, world_size);
  };
  CHECK(refused({}, 2).empty());
  CHECK(refused({}, 3) == "batch.global = 16: must be a multiple of the 3 data ranks (try 18 or 15)");
  CHECK(refused({"parallel.tensor=2"}, 6) ==
        "batch.global = 16: must be a multiple of the 3 data ranks (try 18 or 15)");
  CHECK(refused({}, 32) == "batch.global = 16: must be a multiple of the 32 data ranks (try 32)");
  CHECK(refused({}, 4) == "batch.micro = 8: must divide batch.global / 4 data ranks = 4 (try 4)");
  CHECK(refused({"batch.micro=3"}, 2) == "batch.micro = 3: must divide batch.global / 2 data ranks = 8 (try 4 or 2)");
  CHECK(refusal(with_batch(R"({"global": 16, "accumulation": 3})"), {}, 2) ==
        "batch.accumulation = 3: must divide batch.global / 2 data ranks = 8 (try 4 or 2)");
  CHECK(refused({"batch.micro=2", "batch.accumulation=2"}, 2) ==
        "batch.accumulation = 2: must be batch.global / 2 data ranks / batch.micro = 8 / 2 (try 4)");
  CHECK(refusal(with_batch(R"({"micro": 1000000, "accumulation": 9})"), {}, 2) ==
        "batch.accumulation = 9: times batch.micro = 1000000 times 2 data ranks must be at most 16777216 (try 8)");
}

TEST_CASE("tensor ranks have equal parts of every layer") {
  CHECK(fault({"parallel.tensor=12"}).empty());
  CHECK(fault({"parallel.tensor=5"}) == "parallel.tensor = 5: must divide model.num_heads = 12 (try 6 or 4)");
  CHECK(fault({"parallel.tensor=24"}) == "parallel.tensor = 24: must divide model.num_heads = 12 (try 12)");
  // With fewer key-value heads than ranks, each head must be on the same number of ranks.
  CHECK(fault({"model.num_kv_heads=2", "parallel.tensor=6"}).empty());
  CHECK(fault({"model.num_kv_heads=4", "parallel.tensor=6"}) ==
        "parallel.tensor = 6: must divide model.num_kv_heads = 4, or be a multiple of it (try 12 or 4)");
  CHECK(fault({"model.ffn_hidden_size=3001", "parallel.tensor=2"}) ==
        "parallel.tensor = 2: must divide model.ffn_hidden_size = 3001 (try 1)");
  CHECK(fault({"model.ffn_hidden_size=1000", "parallel.tensor=3"}) ==
        "parallel.tensor = 3: must divide model.ffn_hidden_size = 1000 (try 4 or 2)");
}

TEST_CASE("sequence parallelism needs tensor ranks and rows that divide over them") {
  CHECK(fault({"parallel.sequence=true"}) ==
        "parallel.sequence = true: has no effect unless parallel.tensor is greater than 1 "
        "(try --set parallel.sequence=null or leaving it out)");
  CHECK(fault({"parallel.sequence=true", "parallel.tensor=4"}).empty());
  CHECK(fault({"parallel.overlap_tensor=false"}).empty());
  CHECK(fault({"parallel.overlap_tensor=true"}) ==
        "parallel.overlap_tensor = true: has no effect unless parallel.tensor is greater than 1 (try false)");
  CHECK(fault({"parallel.tensor=3"}).empty());
  CHECK(
      fault({"parallel.sequence=true", "parallel.tensor=3"}) ==
      "parallel.tensor = 3: must divide batch.micro * model.sequence_length = 8 * 256 with parallel.sequence (try 2)");
  // Sequence parallelism divides the rows of a micro-batch, not of a sequence.
  CHECK(fault({"parallel.sequence=true", "parallel.tensor=3", "batch.global=12", "batch.micro=3"}).empty());
}

TEST_CASE("ranks that share sequences by heads divide tokens and heads, and refuse what has parts of neither") {
  const auto with = [](const Overrides& more) {
    Overrides all = {"parallel.context=4", "parallel.context_method=heads", "model.num_heads=8",
                     "model.num_kv_heads=2"};
    all.insert(all.end(), more.begin(), more.end());
    return fault(all);
  };
  CHECK(with({"memory.saved_inputs=8"}).empty());
  CHECK(with({"parallel.context=3"}) == "parallel.context = 3: must divide model.sequence_length = 256 (try 4 or 2)");
  CHECK(with({"parallel.context=16"}) == "parallel.context = 16: must divide model.num_heads = 8 (try 8)");
  CHECK(with({"parallel.tensor=4"}) ==
        "parallel.context = 4: must divide model.num_heads = 8 / parallel.tensor = 4 (try 2)");
  CHECK(with({"model.num_heads=12", "model.num_kv_heads=3"}) ==
        "parallel.context = 4: must divide model.num_kv_heads = 3, or be a multiple of it (try 1)");
  CHECK(with({"parallel.tensor=2", "parallel.sequence=true", "batch.micro=1", "model.sequence_length=252"}) ==
        "parallel.tensor = 2: must divide batch.micro * model.sequence_length / parallel.context = 1 * 252 / 4 with "
        "parallel.sequence (try 1)");
  CHECK(with({R"(model.attention_pattern=["fixed:64,4/4"])", "model.num_kv_heads=8"}) ==
        "model.attention_pattern[0] = \"fixed:64,4/4\": V must divide the 2 heads of a rank of parallel.tensor and "
        "parallel.context (try \"fixed:64,4/2\")");
  CHECK(with({"model.attention_sinks=true"}).empty());
  CHECK(with({R"(memory.linear_projection={"kind":"gauss","share":0.5})"}) ==
        "memory.linear_projection = {...}: projects whole sequences, but with parallel.context = 4 a rank has only a "
        "part of each (try {})");
}

TEST_CASE("ranks that share sequences by a ring have two runs of tokens, and windows of keys") {
  const auto with = [](const Overrides& more) {
    Overrides all = {"parallel.context=4", "parallel.context_method=ring", "model.num_heads=8", "model.num_kv_heads=2"};
    all.insert(all.end(), more.begin(), more.end());
    return fault(all);
  };
  CHECK(
      with({"parallel.context=32", "memory.saved_inputs=8", R"(model.attention_pattern=["dense","band:9"])"}).empty());
  CHECK(with({"model.sequence_length=252"}) ==
        "parallel.context = 4: times 2 must divide model.sequence_length = 252 with parallel.context_method = ring, "
        "where each rank has two runs (try 6 or 3)");
  CHECK(with({R"(model.attention_pattern=["dense","strided:64"])"}) ==
        "parallel.context_method = \"ring\": ring needs dense or band:W patterns, with or without +global:G (try "
        "\"heads\")");
  CHECK(with({"model.attention_sinks=true", R"(model.attention_pattern=["band:9+global:2"])"}).empty());
  CHECK(fault({"parallel.context_method=ring"}) ==
        "parallel.context_method = \"ring\": has no effect unless parallel.context is greater than 1 (try --set "
        "parallel.context_method=null or leaving it out)");
}

TEST_CASE("ranks that share sequences take heads where these divide and the ranks are on one node, else a ring") {
  const auto method = [](const Overrides& more, bool leaves) {
    Overrides all = {"parallel.context=4", "model.num_heads=8", "model.num_kv_heads=2"};
    all.insert(all.end(), more.begin(), more.end());
    RunConfig config = parse(all);
    choose_context_method(config, leaves);
    return config.parallel.context_method;
  };
  CHECK(method({}, false) == ContextMethod::heads);
  CHECK(method({}, true) == ContextMethod::ring);
  CHECK(method({"parallel.context_method=heads"}, true) == ContextMethod::heads);
  CHECK(method({R"(model.attention_pattern=["strided:64"])"}, true) == ContextMethod::heads);
  CHECK(method({"parallel.context=16"}, false) == ContextMethod::ring);
  CHECK(method({"memory.saved_inputs=8"}, false) == ContextMethod::ring);
  ParallelConfig eight;
  eight.tensor = 2;
  eight.context = 4;
  CHECK(!leaves_node(eight, 0));
  CHECK(!leaves_node(eight, 16));
  CHECK(leaves_node(eight, 4));
  CHECK(leaves_node(eight, 12));
}

TEST_CASE("products that would overflow are refused") {
  CHECK(fault({"batch.global=16777216", "batch.micro=64", "run.steps=1e12"}) ==
        "run.steps = 1000000000000: times batch.global * model.sequence_length = 16777216 * 256 must be less than "
        "2^63 tokens (try 2147483647)");
  CHECK(fault({"model.sequence_length=1048576", "batch.micro=4096", "batch.global=4096"}) ==
        "batch.micro = 4096: times model.sequence_length = 1048576 must be at most 2147483647 tokens (try 1024)");
}

TEST_CASE("the schedule fits in the run") {
  CHECK(fault({"schedule.warmup_steps=1001"}) ==
        "schedule.warmup_steps = 1001: must be at most run.steps = 1000 (try 1000)");
  const Overrides wsd = {"schedule.type=wsd", "schedule.warmup_steps=100"};
  CHECK(fault({wsd[0], wsd[1], "schedule.decay_steps=900"}).empty());
  CHECK(fault({wsd[0], wsd[1], "schedule.decay_steps=901"}) ==
        "schedule.decay_steps = 901: must be at most run.steps - schedule.warmup_steps = 1000 - 100 (try 900)");
  CHECK(fault({wsd[0], "schedule.warmup_steps=1000", "schedule.decay_steps=1"}) ==
        "schedule.decay_steps = 1: must be at most run.steps - schedule.warmup_steps = 1000 - 1000 "
        "(try fewer schedule.warmup_steps)");
  CHECK(fault({"schedule.type=cosine", "schedule.min_lr=0.001"}).empty());
  CHECK(fault({"schedule.type=cosine", "schedule.min_lr=0.002"}) ==
        "schedule.min_lr = 0.002: must be at most optimizer.lr = 0.001 (try 0.001)");
}

TEST_CASE("a key that would have no effect is refused") {
  CHECK(fault({"schedule.min_lr=0"}) ==
        "schedule.min_lr = 0.0: has no effect unless schedule.type is linear, cosine or wsd "
        "(try --set schedule.min_lr=null or leaving it out)");
  CHECK(fault({"schedule.decay_steps=10", "schedule.type=cosine"}) ==
        "schedule.decay_steps = 10: has no effect unless schedule.type is wsd "
        "(try --set schedule.decay_steps=null or leaving it out)");
  CHECK(fault({"memory.activation_bits=8"}) == "memory.activation_bits = 8: must be 16, 4, 3 or 2 (try 4)");
  CHECK(fault({"memory.activation_bits=1"}) == "memory.activation_bits = 1: must be at least 2 and at most 16 (try 2)");
  CHECK(fault({"memory.activation_bits=3", "memory.recompute=selective"}) ==
        "memory.activation_bits = 3: saves nothing with memory.recompute = \"selective\", which keeps the input (try "
        "16)");
  CHECK(fault({"memory.activation_bits=3", "model.activation=swiglu"}) ==
        "memory.activation_bits = 3: has no effect unless model.activation is gelu or gelu_tanh "
        "(try --set memory.activation_bits=null or leaving it out)");
  CHECK(fault({"memory.saved_inputs=8", "memory.recompute=block", "memory.activation_bits=3"}).empty());
  CHECK(fault({"memory.saved_inputs=12"}) == "memory.saved_inputs = 12: must be 16 or 8 (try 8)");
  CHECK(fault({"memory.saved_inputs=4"}) == "memory.saved_inputs = 4: must be at least 8 and at most 16 (try 8)");
  CHECK(fault({"memory.saved_inputs=8", "memory.recompute=selective"}) ==
        "memory.saved_inputs = 8: cannot be combined with memory.recompute = \"selective\", which recomputes a norm "
        "from an input that must be exact (try 16)");
  CHECK(fault({"memory.saved_inputs=8", "memory.recompute=ffn"}) ==
        "memory.saved_inputs = 8: cannot be combined with memory.recompute = \"ffn\", which recomputes a norm from an "
        "input that must be exact (try 16)");
  CHECK(fault({"memory.saved_inputs=8", "precision.compute=bf16", "precision.linears=fp8", "run.device=auto"}) ==
        "memory.saved_inputs = 8: cannot be combined with precision.linears = \"fp8\", which saves inputs in 8 bits "
        "itself "
        "(try "
        "16)");
  CHECK(
      fault({R"(memory.linear_projection={"kind":"gauss"})", "precision.compute=bf16", "precision.linears=fp8",
             "run.device=auto"}) ==
      R"(memory.linear_projection = {...}: cannot be combined with precision.linears = "fp8", whose linears save inputs in )"
      "8 bits (try {})");
  CHECK(fault({R"(memory.linear_projection={"kind":"rows","sites":["qkv"]})", "parallel.tensor=2",
               "parallel.sequence=true", "batch.micro=1"}) ==
        "memory.linear_projection = {...}: projects whole sequences: with parallel.sequence batch.micro = 1 must be a "
        "multiple of parallel.tensor = 2 (try {})");
  const std::string int8 = R"(comm.compression={"kind":"int8"})";
  CHECK(fault({int8, "precision.compute=fp16", "run.device=auto"}) ==
        "comm.compression = {...}: cannot be combined with precision.compute = \"fp16\": error feedback would "
        "add errors with an old loss scale (try {})");
  CHECK(fault({R"(comm.compression={"kind":"int8","start_step":1000})", "run.steps=1000"})
            .ends_with("comm.compression = {...}: compresses nothing, as its start_step is not less than run.steps = "
                       "1000 (try {})"));
  CHECK(fault({int8, "precision.reduce=bf16"}) ==
        "comm.compression = {...}: needs precision.reduce = \"fp32\": gradients that are not coded are summed in fp32 "
        "(try {})");
  CHECK(fault({int8, "precision.compute=bf16-pure", "precision.gradients=bf16"}) ==
        "comm.compression = {...}: needs precision.gradients = \"fp32\", in which errors are added to gradients (try "
        "{})");
  CHECK(fault({R"(comm.compression={"kind":"int8","rank":2})"}) ==
        "comm.compression = {...}: has a rank, which only kinds \"powersgd\" and \"sketch\" read (try {})");
  const std::string low_rank = R"(comm.compression={"kind":"powersgd"})";
  CHECK(fault({low_rank, "parallel.zero=2"}) ==
        "comm.compression = {...}: of kind \"powersgd\" needs parallel.zero = 0 or 1, as it sums whole matrices once a "
        "step (parallel.zero = 2) (try {\"kind\": \"int8\"})");
  CHECK(fault({low_rank, "parallel.tensor=2"}) ==
        "comm.compression = {...}: of kind \"powersgd\" needs parallel.tensor = 1, as it sums whole matrices (try "
        "{\"kind\": \"int8\"})");
  CHECK(fault({R"(comm.compression={"kind":"int8","share":0.1})"}) ==
        "comm.compression = {...}: has a share, which only kinds \"topk\" and \"sketch\" read (try {})");
  CHECK(fault({R"(comm.compression={"kind":"topk","error":false})"}) ==
        "comm.compression = {...}: of kind \"topk\" needs error = true: without the errors, small elements would never "
        "be "
        "sent (try {})");
  CHECK(
      refusal(base, {R"(comm.compression={"kind":"topk"})", "parallel.zero=2"}, 2) ==
      "comm.compression = {...}: of kind \"topk\" needs parallel.zero = 0 or 1, as it sums whole matrices once a step "
      "(parallel.zero = 2) (try {\"kind\": \"int8\"})");
  CHECK(refusal(base, {R"(comm.compression={"kind":"topk","share":0.25})", "parallel.zero=1"}, 2) ==
        "comm.compression = {...}: of kind \"topk\" needs a share below 0.25 to send less than plain sums of 2 data "
        "ranks do (try {\"kind\": \"topk\", \"share\": 0.062})");
  CHECK(fault({R"(comm.compression={"kind":"sketch","error":false})"}) ==
        "comm.compression = {...}: of kind \"sketch\" needs error = true: without the errors, all other elements would "
        "be lost (try {})");
  CHECK(fault({R"(comm.compression={"kind":"sketch"})", "parallel.zero=3"})
            .starts_with("comm.compression = {...}: of kind \"sketch\" needs parallel.zero = 0 or 1, as it sums whole "
                         "matrices once a step (parallel.zero = 3)"));
  // The sketch has six columns and each sum one value for each element.
  CHECK(
      refusal(base, {R"(comm.compression={"kind":"sketch","share":0.072,"rank":3})", "parallel.zero=1"}, 2) ==
      "comm.compression = {...}: of kind \"sketch\" needs a share below 0.0714 to send less than plain sums of 2 data "
      "ranks do (try {\"kind\": \"sketch\", \"share\": 0.018})");
  CHECK(refusal(base, {R"(comm.compression={"kind":"sketch","share":0.071,"rank":3})", "parallel.zero=1"}, 2) == "");
  CHECK(fault({R"(comm.compression={"kind":"powersgd","error":false})"}) ==
        "comm.compression = {...}: of kind \"powersgd\" needs error = true: without the errors, most of each gradient "
        "would be lost (try {})");
  CHECK(fault({int8, "run.device=cuda"}).find("were not tested on the CUDA backend yet") != std::string::npos);
  const std::string local = R"(parallel.local_steps={"islands":2,"every":30})";
  CHECK(refusal(base, {local, "comm.compression={\"kind\":\"int8\"}"}, 2) ==
        "comm.compression = {...}: cannot be combined with parallel.local_steps: choose one of the two (try {})");
  CHECK(refusal(base, {local, "checkpoint.every_steps=100"}, 2) ==
        "checkpoint.every_steps = 100: must be a multiple of parallel.local_steps' every = 30, as weights are equal "
        "then only (try 90)");
  CHECK(refusal(base, {local, "optimizer.type=muon"}, 2) ==
        "optimizer.type = \"muon\": must be adamw, lion or sgd with parallel.local_steps, whose islands update alone "
        "(try \"adamw\")");
  CHECK(
      refusal(base, {R"(parallel.local_steps={"islands":3,"every":30})", "batch.micro=4"}, 4) ==
      "parallel.local_steps = {...}: needs islands that divide the 4 data ranks (try {\"islands\": 2, \"every\": 30})");
  CHECK(
      fault({R"(parallel.local_steps={"islands":1,"every":2,"outer":"nesterov"})"}) ==
      "parallel.local_steps = {...}: with outer = \"nesterov\" needs at least 2 islands: with one there is nothing to "
      "average (try {})");
  CHECK(refusal(base, {R"(parallel.local_steps={"islands":2,"every":2,"outer_lr":0.5})"}, 2) ==
        "parallel.local_steps = {...}: has outer_lr or outer_momentum, which only outer = \"nesterov\" reads (try {})");
  CHECK(refusal(base, {local, "optimizer.ema=0.9"}, 2) ==
        "optimizer.ema = 0.9: must be 0 with parallel.local_steps, as islands have other weights between averagings "
        "(try 0)");
  CHECK(refusal(base, {local}, 2).empty());
  CHECK(fault({"parallel.pipeline=2", "parallel.pipeline_schedule=pipedream-2bw"}).find("weights of earlier steps") !=
        std::string::npos);
  CHECK(
      fault({"memory.offload_activations=all", "memory.recompute=optimal"}) ==
      "memory.offload_activations = \"all\": must be \"none\" or \"optimal\" with memory.recompute = \"optimal\" (try "
      "\"optimal\")");
  CHECK(fault({"memory.offload_activations=optimal", "memory.recompute=block"}) ==
        "memory.offload_activations = \"optimal\": needs memory.recompute = \"optimal\" (try \"hidden\")");
  CHECK(fault({"memory.offload_activations=optimal", "memory.recompute=optimal"}).empty());
  CHECK(fault({"memory.offload_activations=99", "model.num_layers=2"}) ==
        "memory.offload_activations = 99: must be at most model.num_layers = 2 (try \"all\")");
  CHECK(fault({"memory.activation_budget=1000000", "memory.recompute=block"}) ==
        "memory.activation_budget = 1000000: has no effect unless memory.recompute is optimal "
        "(try --set memory.activation_budget=null or leaving it out)");
  CHECK(fault({"memory.recompute_interval=2", "memory.recompute=block"}) ==
        "memory.recompute_interval = 2: has no effect unless memory.recompute is every_nth "
        "(try --set memory.recompute_interval=null or leaving it out)");
  CHECK(fault({"model.rope_theta=5000"}) ==
        "model.rope_theta = 5000.0: has no effect unless model.positions is rope, and rope_theta_pattern is empty "
        "(try --set model.rope_theta=null or leaving it out)");
  CHECK(fault({"run.validate_every_steps=5", "run.validation_samples=8"}) ==
        "run.validate_every_steps = 5: has no effect unless data.validation names a source "
        "(try --set run.validate_every_steps=null or leaving it out)\n"
        "run.validation_samples = 8: has no effect unless data.validation names a source "
        "(try --set run.validation_samples=null or leaving it out)");
  CHECK(fault({"run.validate_every_steps=5", R"(data.validation=[{"path": "x"}])"}).empty());
}

TEST_CASE("a projection has a kind, a share and sites") {
  const auto projection = [](const std::string& value) { return "memory.linear_projection=" + value; };
  const ProjectionConfig usual = parse({projection(R"({"kind": "rademacher"})")}).memory.linear_projection;
  CHECK((usual.kind == ProjectionKind::rademacher && usual.share == 0.2));
  CHECK(usual.sites == std::vector{LinearSite::qkv, LinearSite::ffn_in, LinearSite::ffn_out});
  const ProjectionConfig given =
      parse({projection(R"({"kind": "rows", "share": 1, "sites": ["ffn_out"]})")}).memory.linear_projection;
  CHECK((given.kind == ProjectionKind::rows && given.share == 1 && given.is_at(LinearSite::ffn_out)));
  CHECK(!given.is_at(LinearSite::qkv));
  CHECK(!parse({projection("{}")}).memory.linear_projection.is_on());
  const std::pair<std::string, std::string> refused[] = {
      {R"({"share": 0.2})", R"(memory.linear_projection.kind: must be given (try "rademacher"))"},
      {R"({"kind": "gaus"})",
       R"(memory.linear_projection.kind = "gaus": must be one of gauss, rademacher, dct, rows (try "gauss"))"},
      {R"({"kind": "rows", "share": 0})",
       "memory.linear_projection.share = 0: must be greater than 0 and at most 1 (try 0.2)"},
      {R"({"kind": "rows", "sites": []})",
       R"(memory.linear_projection.sites = []: must be an array of words, at least one (try ["qkv","ffn_in","ffn_out"]))"},
      {R"({"kind": "rows", "sites": ["out"]})",
       R"(memory.linear_projection.sites[0] = "out": saves nothing there: attention's backward reads the input of that )"
       R"(linear anyway (try "qkv"))"},
      {R"({"kind": "rows", "sites": ["qkv", "ffn_i"]})",
       R"(memory.linear_projection.sites[1] = "ffn_i": must be one of qkv, ffn_in, ffn_out (try "ffn_in"))"},
      {R"({"kind": "rows", "sites": ["qkv", "qkv"]})",
       R"(memory.linear_projection.sites[1] = "qkv": is there twice (try leaving one of them out))"},
      {R"({"kind": "rows", "shares": 1})",
       "memory.linear_projection.shares = 1: unknown key (try memory.linear_projection.share)"}};
  for (const auto& [value, message] : refused) CHECK(fault({projection(value)}) == message);
}

TEST_CASE("what f32 would take for 0 is no eps and no limit") {
  CHECK(fault({"optimizer.eps=1e-300"}) ==
        "optimizer.eps = 1e-300: must be at least 1.2e-38 and at most 1 (try 1.2e-38)");
  CHECK(fault({"optimizer.clip_norm=1e-300"}) ==
        "optimizer.clip_norm = 1e-300: must be 0, or at least 1.2e-38 and at most 1000000000 (try 1.2e-38)");
  CHECK(fault({"optimizer.clip_norm=-1"}) ==
        "optimizer.clip_norm = -1: must be 0, or at least 1.2e-38 and at most 1000000000 (try 1.2e-38)");
  for (const char* const key : {"clip_threshold", "eps2", "eps"})
    CHECK(fault({"optimizer.type=adafactor", fmt::format("optimizer.{}=1e-39", key)})
              .starts_with(fmt::format("optimizer.{} = 1e-39: must be at least 1.2e-38 and ", key)));
  CHECK(fault({"optimizer.eps=1.2e-38", "optimizer.clip_norm=0"}).empty());
}

TEST_CASE("each optimizer has its own keys and defaults") {
  CHECK(parse({"optimizer.type=lion"}).optimizer.beta2 == 0.99);
  CHECK(parse({"optimizer.type=lion", "optimizer.betas=[0.9, 0.95]"}).optimizer.beta2 == 0.95);
  CHECK(parse({}).optimizer.beta2 == 0.95);
  CHECK(parse({}).optimizer.eps == 1e-8);
  CHECK(parse({"optimizer.type=lamb"}).optimizer.beta2 == 0.999);
  CHECK(parse({"optimizer.type=lamb"}).optimizer.eps == 1e-6);
  CHECK(parse({"optimizer.type=lamb", "optimizer.eps=1e-8"}).optimizer.eps == 1e-8);
  CHECK(fault({"optimizer.type=lamb", "optimizer.trust_coefficient=0.01"}) ==
        "optimizer.trust_coefficient = 0.01: has no effect unless optimizer.type is lars "
        "(try --set optimizer.trust_coefficient=null or leaving it out)");
  CHECK(fault({"optimizer.type=sgd", "optimizer.betas=[0.9, 0.95]"}) ==
        "optimizer.betas = [0.9,0.95]: has no effect unless optimizer.type is adamw, adamw-8bit, lion, lamb, muon, "
        "onebit-adam or zero-one-adam (try --set optimizer.betas=null or leaving it out)");
  CHECK(fault({"optimizer.type=lion", "optimizer.eps=1e-6"}) ==
        "optimizer.eps = 1e-06: has no effect unless optimizer.type is adamw, adamw-8bit, lamb, muon, adafactor, "
        "onebit-adam or zero-one-adam (try --set optimizer.eps=null or leaving it out)");
  CHECK(fault({"optimizer.type=lion", "optimizer.momentum=0.8"}) ==
        "optimizer.momentum = 0.8: has no effect unless optimizer.type is sgd, lars or muon "
        "(try --set optimizer.momentum=null or leaving it out)");
  CHECK(fault({"optimizer.type=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"}) ==
        "optimizer.nesterov = true: has no effect unless optimizer.type is sgd or muon and momentum greater than 0 "
        "(try --set optimizer.nesterov=null or leaving it out)");
  const OptimizerConfig muon = parse({"optimizer.type=muon"}).optimizer;
  CHECK((muon.momentum == 0.95 && muon.nesterov && muon.beta2 == 0.95 && muon.eps == 1e-8));
  CHECK_FALSE(parse({"optimizer.type=muon", "optimizer.nesterov=false"}).optimizer.nesterov);
  CHECK_FALSE(parse({"optimizer.type=muon", "optimizer.momentum=0"}).optimizer.nesterov);
  CHECK(parse({"optimizer.type=sgd"}).optimizer.momentum == 0.9);
  CHECK(parse({"optimizer.type=muon", "optimizer.newton_schulz=fp32"}).optimizer.newton_schulz ==
        NewtonSchulzProducts::fp32);
  CHECK(fault({"optimizer.newton_schulz=fp32"}) ==
        "optimizer.newton_schulz = \"fp32\": has no effect unless optimizer.type is muon "
        "(try --set optimizer.newton_schulz=null or leaving it out)");
  CHECK(fault({"optimizer.type=muon", "optimizer.newton_schulz=bf16"}) ==
        "optimizer.newton_schulz = \"bf16\": must be one of auto, fp32 (try \"auto\")");
  CHECK(parse({"optimizer.type=muon", "optimizer.qk_clip=100"}).optimizer.qk_clip == 100);
  for (const auto& [key, reason] :
       {std::pair{"model.qk_norm=true", "has no effect beside model.qk_norm, which normalizes queries and keys"},
        {"model.attention_softcap=50",
         "cannot be combined with model.attention_softcap, which bounds the scores already"},
        {"optimizer.ema=0.9", "needs optimizer.ema = 0"},
        {"precision.compute=bf16-pure",
         "needs fp32 master weights, which precision.compute = \"bf16-pure\" does not have"}})
    CHECK(fault({"optimizer.type=muon", "optimizer.qk_clip=100", key}) ==
          fmt::format("optimizer.qk_clip = 100.0: {} (try 0)", reason));
  CHECK(fault({"optimizer.type=sgd", "optimizer.momentum=1"}) ==
        "optimizer.momentum = 1: must be at least 0 and less than 1 (try 0.9)");
  const std::vector<std::string> odd = {"optimizer.type=adamw-8bit", "model.hidden_size=780", "model.num_kv_heads=2"};
  CHECK(fault({odd[0], odd[1], odd[2], "parallel.tensor=2"}).empty());
  CHECK(fault({odd[0], odd[1], odd[2], "parallel.tensor=6"}) ==
        "optimizer.type = \"adamw-8bit\": needs head_size x hidden_size = 50700 to be a multiple of 256 where "
        "parallel.tensor is greater than model.num_kv_heads = 2 (try \"adamw\")");
  CHECK(fault({odd[0], odd[2], "parallel.tensor=6"}).empty());
  const OptimizerConfig coded = parse({"optimizer.type=adamw-8bit"}).optimizer;
  CHECK((coded.beta1 == 0.9 && coded.beta2 == 0.95 && coded.eps == 1e-8));
  const OptimizerConfig adafactor = parse({"optimizer.type=adafactor"}).optimizer;
  CHECK((adafactor.beta2_decay == -0.8 && adafactor.clip_threshold == 1 && adafactor.eps == 1e-30 &&
         adafactor.eps2 == 1e-3 && adafactor.scale_parameter));
  CHECK(fault({"optimizer.type=adafactor", "optimizer.beta2_decay=0"}) ==
        "optimizer.beta2_decay = 0: must be at least -1 and less than 0 (try -0.8)");
  CHECK(fault({"optimizer.type=adafactor", "optimizer.clip_threshold=0"}) ==
        "optimizer.clip_threshold = 0: must be at least 1.2e-38 and at most 1000000000 (try 1.2e-38)");
  CHECK(fault({"optimizer.type=adafactor", "optimizer.scale_parameter=false", "optimizer.eps2=0.01"}) ==
        "optimizer.eps2 = 0.01: has no effect unless optimizer.type is adafactor and scale_parameter is true "
        "(try --set optimizer.eps2=null or leaving it out)");
  CHECK(fault({"optimizer.clip_threshold=2"}) ==
        "optimizer.clip_threshold = 2.0: has no effect unless optimizer.type is adafactor "
        "(try --set optimizer.clip_threshold=null or leaving it out)");
  CHECK(fault({"optimizer.scale_parameter=false"}) ==
        "optimizer.scale_parameter = false: has no effect unless optimizer.type is adafactor "
        "(try --set optimizer.scale_parameter=null or leaving it out)");
  for (const char* type : {"adamw", "adamw-8bit", "sgd", "lion", "lamb", "lars", "muon", "adafactor"})
    CHECK(fault({std::string("optimizer.type=") + type, "optimizer.ema=0.999"}).empty());
}

TEST_CASE("muP goes with optimizers whose updates have one size") {
  for (const char* type : {"adamw", "adamw-8bit", "lion"})
    CHECK(fault({std::string("optimizer.type=") + type, "model.mup=64"}).empty());
  for (const char* type : {"sgd", "lamb", "lars", "muon", "adafactor"}) {
    CHECK(fault({std::string("optimizer.type=") + type, "model.mup=64"}) ==
          "model.mup = 64: needs optimizer.type = adamw, adamw-8bit or lion (try 0)");
  }
}

TEST_CASE("the learning rate follows the batch, and warm-up with it") {
  CHECK(fault({"optimizer.lr_scaling=sqrt"}) ==
        "optimizer.base_batch: must be given, as optimizer.lr_scaling is linear or sqrt (try 256)");
  CHECK(fault({"optimizer.base_batch=64"}) ==
        "optimizer.base_batch = 64: has no effect unless optimizer.lr_scaling is linear or sqrt "
        "(try --set optimizer.base_batch=null or leaving it out)");
  const Overrides linear = {"optimizer.lr_scaling=linear", "optimizer.base_batch=4", "schedule.warmup_steps=250"};
  const RunConfig config = parse(linear);
  CHECK(config.lr_factor() == 4);
  CHECK(config.warmup_steps() == 1000);
  CHECK(parse({"optimizer.lr_scaling=sqrt", "optimizer.base_batch=4"}).lr_factor() == 2);
  CHECK(parse({"schedule.warmup_steps=250"}).warmup_steps() == 250);
  CHECK(fault({linear[0], linear[1], "schedule.warmup_steps=251"}) ==
        "schedule.warmup_steps = 251: must be at most run.steps = 1000 divided by 4, the factor of "
        "optimizer.lr_scaling (try 250)");
  CHECK(fault({linear[0], linear[1], "schedule.warmup_steps=200", "schedule.type=wsd", "schedule.decay_steps=201"}) ==
        "schedule.decay_steps = 201: must be at most run.steps - schedule.warmup_steps = 1000 - 800 (try 200)");
  // Faults that do not depend on the faulty factor are reported as well.
  const std::string both =
      fault({linear[0], "optimizer.base_batch=0", "schedule.type=linear", "schedule.min_lr=0.5", "optimizer.lr=0.1"});
  CHECK(both.find("optimizer.base_batch = 0: ") != std::string::npos);
  CHECK(both.find("schedule.min_lr = 0.5: must be at most optimizer.lr = 0.1") != std::string::npos);
}

TEST_CASE("faults come all at once, and none that only follows from another") {
  const std::string text = R"({
    "model": {"num_layers": 0, "hidden_size": 768, "num_heads": 5, "vocab_size": 257, "vocab_size": 258,
              "seqence_length": 256},
    "batch": {"global": "many"},
    "schedule": {"type": "cosin", "min_lr": 1},
    "optimizer": {"lr": 0.1},
    "parallel": {"tensor": 2, "sequence": "on"},
    "run": {"steps": 10, "out": "x"}
  })";
  CHECK(refusal(text) == R"(model.vocab_size = 258: is given twice (try leaving one of them out)
model.num_layers = 0: must be at least 1 and at most 10000 (try 1)
model.seqence_length = 256: unknown key (try model.sequence_length)
batch.global = "many": must be an integer (try 16)
schedule.type = "cosin": must be one of constant, linear, cosine, wsd (try "cosine")
parallel.sequence = "on": must be true or false (try false)
model.sequence_length: must be given, here or by model.preset (try 1024)
data.train: must be given (try [{"path": "data/corpus/train"}])
model.num_heads = 5: must divide model.hidden_size = 768 (try 6 or 4))");
}

}  // namespace gptrain::config_test
