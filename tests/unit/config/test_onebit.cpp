// Rules of optimizer.type = onebit-adam and zero-one-adam.
#include "support.h"

namespace gptrain::config_test {
namespace {

std::string onebit_fault(Overrides more, int64_t ranks = 2) {
  more.insert(more.begin(), {"optimizer.type=onebit-adam", "optimizer.freeze_step=200"});
  return refusal(base, more, ranks);
}

std::string zero_one_fault(Overrides more, int64_t ranks = 2) {
  more.insert(more.begin(), {"optimizer.type=zero-one-adam", "optimizer.freeze_step=200", "optimizer.local_scaler=100",
                             "run.steps=1000"});
  return refusal(base, more, ranks);
}

}  // namespace

TEST_CASE("0/1 Adam is refused where its ranks could not train alone or would be read between exchanges") {
  CHECK(zero_one_fault({"checkpoint.every_steps=160"}).empty());
  CHECK(zero_one_fault({"checkpoint.every_steps=160", "parallel.zero=1"}) ==
        "parallel.zero = 1: must be 0: each rank adds its gradients to the whole momenta, with optimizer.type = "
        "\"zero-one-adam\" (try 0)");
  CHECK(zero_one_fault({"checkpoint.every_steps=160", "parallel.context=2", "model.positions=rope"}, 4)
            .find("must be 1: a rank trains alone on whole sequences, with optimizer.type = \"zero-one-adam\"") !=
        std::string::npos);
  CHECK(zero_one_fault({"checkpoint.every_steps=160", "optimizer.local_most=12"}) ==
        "optimizer.local_most = 12: must be a power of two (try 8)");
  CHECK(
      zero_one_fault({"checkpoint.every_steps=100"}) ==
      "checkpoint.every_steps = 100: must be a multiple of 16, the largest distance of exchanges of zero-one-adam, as "
      "weights are equal only after these (try 96)");
  // The distance reaches 2 in a shorter run, and 1 if each step exchanges.
  CHECK(zero_one_fault({"checkpoint.every_steps=100", "run.steps=400"}).empty());
  CHECK(zero_one_fault({"checkpoint.every_steps=101", "optimizer.local_most=1"}).empty());
  CHECK(zero_one_fault({"checkpoint.every_steps=160", "optimizer.freeze_step=1000"})
            .ends_with(
                "optimizer.freeze_step = 1000: freezes nothing, as it is not less than run.steps = 1000 (try 200)"));
}

TEST_CASE("1-bit Adam is refused where its ranks could not sum momenta") {
  const std::string with = " with optimizer.type = \"onebit-adam\"";
  CHECK(onebit_fault({}).empty());
  CHECK(onebit_fault({}, 1) ==
        "optimizer.type = \"onebit-adam\": needs at least two data ranks: one has nothing to send (try \"adamw\")");
  CHECK(refusal(base, {"optimizer.type=onebit-adam"}, 2) ==
        "optimizer.freeze_step: must be given, as optimizer.type is onebit-adam or zero-one-adam (try 1000)");
  CHECK(
      onebit_fault({"run.steps=200"})
          .ends_with("optimizer.freeze_step = 200: freezes nothing, as it is not less than run.steps = 200 (try 40)"));
  CHECK(onebit_fault({"optimizer.clip_norm=1"}) ==
        "optimizer.clip_norm = 1.0: must be 0: after freeze_step no rank knows the norm of the gradients' sum," + with +
            " (try 0)");
  CHECK(onebit_fault({"optimizer.ema=0.9"}) == "optimizer.ema = 0.9: must be 0" + with + " (try 0)");
  CHECK(onebit_fault({"parallel.zero=1"}) ==
        "parallel.zero = 1: must be 0: each rank adds its gradients to the whole momenta," + with + " (try 0)");
  CHECK(onebit_fault({"parallel.pipeline=2", "model.tied_head=true"}, 4) ==
        "parallel.pipeline = 2: must be 1 with model.tied_head: the first and the last stage cannot add up momenta of "
        "the table they share," +
            with + " (try 1)");
  CHECK(onebit_fault({"precision.compute=fp16", "run.device=auto"}) ==
        "precision.compute = \"fp16\": must be fp32 or bf16: errors would be those of another loss scale, or of "
        "rounded weights," +
            with + " (try \"bf16\")");
  CHECK(onebit_fault({"precision.reduce=bf16"}) ==
        "precision.reduce = \"bf16\": must be \"fp32\"" + with + " (try \"fp32\")");
  CHECK(onebit_fault({R"(comm.compression={"kind":"int8"})"}).find("momenta are sent as signs already,") !=
        std::string::npos);
  CHECK(onebit_fault({R"(parallel.local_steps={"islands":2,"every":10})", "checkpoint.every_steps=10"})
            .find("must be adamw, lion or sgd with parallel.local_steps") != std::string::npos);
  CHECK(onebit_fault({"parallel.elastic=true"}).find("each rank keeps errors of its own," + with) != std::string::npos);
  CHECK(onebit_fault({"model.bias=false", R"(model.moe={"experts":4,"top_k":2})"})
            .find("model.moe = {...}: must be {}: experts see tokens by chance," + with) != std::string::npos);
  CHECK(onebit_fault({"memory.offload_optimizer=disk", "memory.disk_path=/x"})
            .find("every backward pass reads the momenta," + with) != std::string::npos);
  CHECK(onebit_fault({"run.device=cuda"}).find("were not tested on the CUDA backend yet," + with) != std::string::npos);
}

}  // namespace gptrain::config_test
