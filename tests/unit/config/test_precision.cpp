// Rules of the section "precision".
#include "support.h"

namespace gptrain::config_test {

TEST_CASE("bf16-pure is bf16 but for the update") {
  const PrecisionConfig precision = parse({"precision.compute=bf16-pure"}).precision;
  CHECK(precision.pure);
  CHECK(precision.compute == DType::bf16);
  CHECK(precision.residual == DType::bf16);
  CHECK(precision.linears == DType::bf16);
  CHECK_FALSE(parse({"precision.compute=bf16"}).precision.pure);
  CHECK(parse({"precision.compute=bf16-pure", "precision.residual=fp32"}).precision.residual == DType::f32);
  CHECK(parse({"precision.compute=bf16-pure", "precision.linears=fp8"}).precision.linears == DType::f8e4m3);
  CHECK(fault({"precision.compute=bf16-pure", "precision.residual=fp16"}) ==
        R"(precision.residual = "fp16": must be bf16 or fp32 with precision.compute = bf16-pure (try "bf16"))");
  CHECK(fault({"precision.compute=bf16-pure", "precision.linears=fp32"}) ==
        R"(precision.linears = "fp32": must be fp8, or equal to precision.compute: "bf16" (try "bf16"))");
  CHECK(fault({"precision.compute=bf16-pure", "precision.linears=fp8", "run.device=cpu"}) ==
        R"(precision.linears = "fp8": needs a GPU, not run.device = cpu (try "bf16"))");
  CHECK(resume_conflicts({parse({"precision.compute=bf16"}), parse({"precision.compute=bf16-pure"})}).text() ==
        R"(precision.compute: "bf16" in the checkpoint, "bf16-pure" in the config)");
}

TEST_CASE("gradients are kept in bf16 with bf16-pure, and for updates that read them") {
  const auto with = [](Overrides more) {
    more.insert(more.begin(), {"precision.compute=bf16-pure", "precision.gradients=bf16"});
    return more;
  };
  for (const char* type : {"adamw", "adamw-8bit", "lion", "sgd"})
    CHECK(parse(with({fmt::format("optimizer.type={}", type)})).precision.gradients == DType::bf16);
  for (const char* type : {"lamb", "lars", "muon"})
    CHECK(fault(with({fmt::format("optimizer.type={}", type)})) ==
          R"(precision.gradients = "bf16": needs optimizer.type = adamw, adamw-8bit, lion or sgd (try "fp32"))");
  CHECK(fault(with({"optimizer.ema=0.9"})) == R"(precision.gradients = "bf16": needs optimizer.ema = 0 (try "fp32"))");
  CHECK(fault({"precision.compute=bf16", "precision.gradients=bf16"}) ==
        R"(precision.gradients = "bf16": has no effect unless precision.compute is bf16-pure )"
        "(try --set precision.gradients=null or leaving it out)");
  CHECK(resume_conflicts({parse({"precision.compute=bf16-pure"}), parse(with({}))}).empty());
}

TEST_CASE("delayed scales come with FP8 products, and may change on resume") {
  const Overrides fp8 = {"precision.compute=bf16", "precision.linears=fp8", "batch.micro=1"};
  const auto with = [&](const char* length) {
    Overrides all = fp8;
    all.emplace_back(length);
    return all;
  };
  CHECK(parse(fp8).precision.amax_history == 0);
  CHECK(parse(with("precision.amax_history=1024")).precision.amax_history == 1024);
  CHECK(
      parse({"precision.compute=bf16", "precision.weight_gradients=fp8", "precision.amax_history=16", "batch.micro=1"})
          .precision.amax_history == 16);
  CHECK(fault({"precision.compute=bf16", "precision.amax_history=16"}) ==
        "precision.amax_history = 16: has no effect unless precision.linears or weight_gradients is fp8 "
        "(try --set precision.amax_history=null or leaving it out)");
  CHECK(fault(with("precision.amax_history=9000")).starts_with("precision.amax_history = 9000: must be"));
  CHECK(resume_conflicts({parse(fp8), parse(with("precision.amax_history=16"))}).empty());
}

TEST_CASE("FP8 linears want bf16, a GPU and sizes in multiples of 16 on every tensor rank") {
  const auto fp8_fault = [](Overrides overrides) {
    overrides.insert(overrides.begin(), {"precision.compute=bf16", "precision.linears=fp8"});
    return refusal(base, overrides, 8);
  };
  CHECK(parse({}).precision.linears == DType::f32);
  CHECK(parse({"precision.compute=bf16"}).precision.linears == DType::bf16);
  CHECK(parse({"precision.compute=bf16", "precision.linears=fp8"}).precision.linears == DType::f8e4m3);
  CHECK(fault({"precision.linears=fp8"}) ==
        R"(precision.linears = "fp8": needs precision.compute = bf16, not "fp32" (try "fp32"))");
  CHECK(fault({"precision.compute=bf16", "precision.linears=fp32"}) ==
        R"(precision.linears = "fp32": must be fp8, or equal to precision.compute: "bf16" (try "bf16"))");
  CHECK(fp8_fault({"batch.micro=1"}).empty());
  CHECK(fp8_fault({"parallel.tensor=2", "batch.micro=1"}).empty());
  CHECK(fp8_fault({"run.device=cpu", "batch.micro=1"}) ==
        R"(precision.linears = "fp8": needs a GPU, not run.device = cpu (try "bf16"))");
  CHECK(fp8_fault({"model.hidden_size=780", "model.ffn_hidden_size=3000", "batch.micro=1"}) ==
        R"(model.hidden_size = 780: must be a multiple of 16 with precision.linears = fp8 (try 784 or 768)
model.ffn_hidden_size = 3000: must be a multiple of 16 with precision.linears = fp8 (try 3008 or 2992))");
  CHECK(fp8_fault({"model.hidden_size=48", "model.num_kv_heads=3", "batch.micro=1"}) ==
        "model.num_kv_heads = 3: times the head size, 4, must be a multiple of 8 with precision.linears = fp8 "
        "(try 4 or 2)");
  CHECK(fp8_fault({"parallel.tensor=2", "model.hidden_size=816", "batch.micro=1"}) ==
        "model.hidden_size = 816: must be a multiple of 32 with precision.linears = fp8 and parallel.tensor = 2 "
        "(try 832 or 800)");
  CHECK(fp8_fault({"parallel.tensor=4", "model.num_heads=192", "model.num_kv_heads=4", "batch.micro=1"}) ==
        "model.num_kv_heads = 4: those of a tensor rank times the head size, 4, must be a multiple of 8 with "
        "precision.linears = fp8 and parallel.tensor = 4 (try 8)");
  CHECK(fp8_fault({"parallel.tensor=2", "parallel.overlap_tensor=true", "batch.micro=1"}) ==
        "parallel.overlap_tensor = true: cannot be combined with precision.linears = \"fp8\": the scale of FP8 numbers "
        "needs all rows at once (try false)");
  CHECK(fp8_fault({"model.sequence_length=20", "batch.global=64", "batch.micro=2"}) ==
        "batch.micro = 2: times model.sequence_length = 20 must be a multiple of 16 with precision.linears = fp8 "
        "(try 4)");
}

TEST_CASE("factors of weights' gradients have the linears' type or fewer bits") {
  const auto given = [](Overrides overrides) { return parse(overrides).precision.weight_gradients; };
  CHECK(given({}) == DType::f32);
  CHECK(given({"precision.weight_gradients=bf16"}) == DType::bf16);
  CHECK(given({"precision.compute=bf16-pure"}) == DType::bf16);
  CHECK(given({"precision.compute=fp16", "run.device=auto"}) == DType::f16);
  CHECK(given({"precision.compute=bf16", "precision.weight_gradients=bf16"}) == DType::bf16);
  CHECK(given({"precision.compute=bf16", "precision.weight_gradients=fp8", "batch.micro=1"}) == DType::f8e4m3);
  CHECK(given({"precision.compute=bf16", "precision.linears=fp8", "batch.micro=1"}) == DType::f8e4m3);
  CHECK(fault({"precision.weight_gradients=fp8"}) ==
        R"(precision.weight_gradients = "fp8": needs precision.compute = bf16, not "fp32" (try "fp32"))");
  CHECK(
      fault({"precision.weight_gradients=fp16"}) ==
      R"(precision.weight_gradients = "fp16": must be "fp32" or "bf16" with precision.compute = "fp32" (try "fp32"))");
  CHECK(fault({"precision.compute=bf16", "precision.weight_gradients=fp32"}) ==
        R"(precision.weight_gradients = "fp32": must be "bf16" or "fp8" with precision.compute = "bf16" (try "bf16"))");
  CHECK(fault({"precision.compute=fp16", "precision.weight_gradients=bf16", "run.device=auto"}) ==
        R"(precision.weight_gradients = "bf16": must be "fp16" with precision.compute = "fp16" (try "fp16"))");
  CHECK(
      fault({"precision.compute=bf16", "precision.linears=fp8", "precision.weight_gradients=bf16", "batch.micro=1"}) ==
      R"(precision.weight_gradients = "bf16": cannot be combined with precision.linears = "fp8", whose products are all of FP8 )"
      R"((try "fp8"))");
  CHECK(fault({"precision.compute=bf16", "precision.weight_gradients=fp8", "run.device=cpu", "batch.micro=1"}) ==
        R"(precision.weight_gradients = "fp8": needs a GPU, not run.device = cpu (try "bf16"))");
  CHECK(fault({"precision.compute=bf16", "precision.weight_gradients=fp8", "model.ffn_hidden_size=3000",
               "batch.micro=1"}) ==
        "model.ffn_hidden_size = 3000: must be a multiple of 16 with precision.weight_gradients = fp8 (try 3008 or "
        "2992)");
  CHECK(fault({"precision.compute=bf16", "precision.weight_gradients=fp8", "memory.saved_inputs=8", "batch.micro=1"}) ==
        "memory.saved_inputs = 8: cannot be combined with precision.weight_gradients = \"fp8\", which saves inputs in "
        "8 bits "
        "itself (try 16)");
}

TEST_CASE("the residual stream is at least as precise as the arithmetic") {
  CHECK(parse({}).precision.residual == DType::f32);
  CHECK(parse({"precision.compute=bf16"}).precision.residual == DType::bf16);
  CHECK(parse({"precision.compute=bf16", "precision.residual=fp32"}).precision.residual == DType::f32);
  CHECK(fault({"precision.residual=bf16"}) ==
        R"(precision.residual = "bf16": must be fp32 with precision.compute = fp32 (try "fp32"))");
  CHECK(parse({"precision.compute=fp16"}).precision.residual == DType::f16);
  CHECK(parse({"precision.compute=fp16", "precision.residual=fp32"}).precision.residual == DType::f32);
  CHECK(fault({"precision.compute=fp16", "precision.residual=bf16"}) ==
        R"(precision.residual = "bf16": must be fp16 or fp32 with precision.compute = fp16 (try "fp16"))");
}

TEST_CASE("the loss scale is a power of two") {
  const PrecisionConfig usual = parse({"precision.compute=fp16"}).precision;
  CHECK((usual.loss_scale == 65536 && usual.loss_scale_window == 2000));
  CHECK(parse({"precision.compute=fp16", "precision.loss_scale=1"}).precision.loss_scale == 1);
  CHECK(fault({"precision.compute=fp16", "precision.loss_scale=1000"}) ==
        "precision.loss_scale = 1000: must be a power of two (try 1024 or 512)");
  CHECK(fault({"precision.compute=fp16", "precision.loss_scale=33554432"}) ==
        "precision.loss_scale = 33554432: must be at least 1 and at most 16777216 (try 16777216)");
}

TEST_CASE("fp16 is for devices") {
  CHECK(fault({"precision.compute=fp16", "run.device=auto"}).empty());
  CHECK(
      fault({"precision.compute=fp16", "run.device=cpu"}) ==
      R"(run.device = "cpu": must be cuda or auto with precision.compute = fp16, which the CPU backend does not have )"
      R"((try "cuda"))");
}

}  // namespace gptrain::config_test
