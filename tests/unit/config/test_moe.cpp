// The key model.moe and its rules.
#include "support.h"

namespace gptrain::config_test {
namespace {

// A refusal of a mixture without biases.
std::string moe_fault(const std::string& moe, Overrides more = {}) {
  more.insert(more.begin(), {"model.bias=false", "model.moe=" + moe});
  return fault(more);
}

MoeConfig moe_of(const std::string& moe) { return parse({"model.bias=false", "model.moe=" + moe}).model.moe; }

}  // namespace

TEST_CASE("a mixture's sizes and layers follow from its keys") {
  const MoeConfig usual = moe_of(R"({"experts":8,"top_k":2})");
  CHECK(usual.ffn_hidden_size == 4 * 768);
  CHECK(usual.shared_ffn_hidden_size == 0);
  CHECK(usual.is_at(0));
  const MoeConfig other = moe_of(R"({"experts":4,"top_k":1,"renormalise":false,"ffn_hidden_size":64,"shared":3,
    "first":1,"every":2,"score":"sigmoid"})");
  CHECK(other.shared_ffn_hidden_size == 192);
  CHECK(other.score == RouterScore::sigmoid);
  CHECK_FALSE(other.is_at(0));
  CHECK(other.is_at(1));
  CHECK_FALSE(other.is_at(2));
  const ModelConfig model = parse({"model.bias=false", R"(model.moe={"experts":4,"top_k":2,"first":11})"}).model;
  CHECK(model.ffn(10) == FfnKind{3072});
  CHECK(model.ffn(11) == FfnKind{3072, true});
  CHECK_FALSE(parse({}).model.moe.is_on());
}

TEST_CASE("a mixture that cannot learn or does not fit is refused") {
  CHECK(moe_fault(R"({"experts":2,"top_k":3})") ==
        "model.moe.top_k = 3: must be at most model.moe.experts = 2 (try 2)");
  CHECK(
      moe_fault(R"({"experts":2,"top_k":1})") ==
      "model.moe.renormalise = true: must be false with model.moe.top_k = 1: the only weight would be 1, which teaches "
      "the router nothing (try false)");
  CHECK(moe_fault(R"({"experts":2,"top_k":2})") ==
        "model.moe.aux_loss = 0.01: balances nothing with model.moe.top_k = model.moe.experts (try 0)");
  CHECK(moe_fault(R"({"experts":4,"top_k":2,"shared_ffn_hidden_size":64})") ==
        "model.moe.shared_ffn_hidden_size = 64: has no effect unless model.moe.shared is above 0 (try 0)");
  CHECK(moe_fault(R"({"experts":4,"top_k":2,"first":12})") ==
        "model.moe.first = 12: must be less than model.num_layers = 12 (try 11)");
  CHECK(moe_fault(R"({"experts":8192,"top_k":2})") ==
        "model.moe.experts = 8192: makes 98304 experts in 12 blocks, must be at most 65536 (try 5461)");
  CHECK(
      moe_fault(R"({"experts":4,"top_k":2,"ffn_hidden_size":99})", {"model.hidden_size=72"}) ==
      "model.moe.ffn_hidden_size = 99: times model.hidden_size = 72 over parallel.tensor = 1 must be a multiple of 256 "
      "(try 128 or 96)");
  CHECK(refusal(base,
                {"model.bias=false", R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":100})", "parallel.tensor=3"},
                3) ==
        "parallel.tensor = 3: must divide model.moe's ffn_hidden_size and shared_ffn_hidden_size (try 4 or 2)");
}

TEST_CASE("keys without a part for experts are refused beside them") {
  const std::string moe = R"({"experts":4,"top_k":2})";
  CHECK(fault({"model.moe=" + moe}) ==
        "model.bias = true: must be false with model.moe: experts have no biases (try false)");
  CHECK(moe_fault(moe, {"run.device=cuda"}).empty());
  CHECK(moe_fault(moe, {"parallel.context=2"}).empty());
  CHECK(
      moe_fault(R"({"experts":4,"top_k":2,"capacity":1.5})", {"parallel.context=2"}) ==
      "model.moe.capacity_over = \"sequence\": must be \"rank\" with parallel.context = 2: experts drop rows of whole "
      "sequences (try \"rank\")");
  CHECK(moe_fault(moe, {"memory.saved_inputs=8"}) ==
        "memory.saved_inputs = 8: must be 16 with model.moe: a router chooses by exact inputs (try 16)");
  for (const char* other : {"model.mup=256", "memory.activation_bits=4", "precision.weight_gradients=bf16",
                            R"(memory.linear_projection={"kind":"gauss"})"})
    CHECK(moe_fault(moe, {other}).find("model.moe") != std::string::npos);
}

TEST_CASE("keys of balance, groups and capacity are refused where they have no effect") {
  const auto fault_with = [](const std::string& keys, const Overrides& more = {}) {
    return moe_fault(R"({"experts":12,"top_k":4,)" + keys + "}", more);
  };
  CHECK(moe_of(R"({"experts":12,"top_k":4})").group_top_k == 1);
  CHECK(fault_with(R"("group_top_k":2)") ==
        "model.moe.group_top_k = 2: has no effect unless model.moe.groups is above 1 (try 1)");
  CHECK(fault_with(R"("groups":5,"group_top_k":1)") ==
        "model.moe.groups = 5: must divide model.moe.experts = 12 (try 6 or 4)");
  CHECK(
      fault_with(R"("groups":4)") ==
      "model.moe.group_top_k = 4: must be less than model.moe.groups = 4, and divide model.moe.top_k = 4 into at most "
      "3 experts of a group (try 2)");
  CHECK(
      fault_with(R"("groups":4,"group_top_k":1)") ==
      "model.moe.group_top_k = 1: must be less than model.moe.groups = 4, and divide model.moe.top_k = 4 into at most "
      "3 experts of a group (try 2)");
  CHECK(moe_fault(R"({"experts":2,"top_k":2,"aux_loss":0,"router_bias_rate":0.001})") ==
        "model.moe.router_bias_rate = 0.001: balances nothing with model.moe.top_k = model.moe.experts (try 0)");
  CHECK(fault_with(R"("aux_loss":0,"aux_over":"global")") ==
        "model.moe.aux_over = \"global\": has no effect unless model.moe.aux_loss is above 0 (try \"sequence\")");
  CHECK(fault_with(R"("capacity":0.5)") ==
        "model.moe.capacity = 0.5: must be 0 or at least 1: less drops tokens even of equal loads (try 1)");
  CHECK(fault_with(R"("capacity_over":"rank")") ==
        "model.moe.capacity_over = \"rank\": has no effect unless model.moe.capacity is above 0 (try \"sequence\")");
  CHECK(fault_with(R"("drop":"position")") ==
        "model.moe.drop = \"position\": has no effect unless model.moe.capacity is above 0 (try \"probability\")");
  CHECK(fault_with(R"("shared_gate":"sigmoid")") ==
        "model.moe.shared_gate = \"sigmoid\": has no effect unless model.moe.shared is above 0 (try \"none\")");
  CHECK(fault_with(R"("router_bias_rate":0.001)", {"memory.offload_optimizer=disk"})
            .find("memory.offload_optimizer = \"disk\": must be \"none\": updates beside the device do not see the "
                  "experts' "
                  "loads, with model.moe.router_bias_rate (try \"none\")") != std::string::npos);
  CHECK(fault_with(R"("aux_over":"global")", {R"(comm.compression={"kind":"int8"})"})
            .find("errors of compression would move vectors that have no gradient, with model.moe.aux_over = "
                  "\"global\"") != std::string::npos);
}

TEST_CASE("ranks share experts evenly, or not at all") {
  const std::string moe = R"(model.moe={"experts":6,"top_k":2})";
  const auto refused = [&](Overrides more, int64_t ranks) {
    more.insert(more.end(), {"model.bias=false", moe, "batch.micro=4"});
    return refusal(base, more, ranks);
  };
  CHECK(fault({"parallel.expert=2"}) ==
        "parallel.expert = 2: must be 1 without model.moe: there are no experts (try 1)");
  CHECK(refused({"parallel.expert=4"}, 4) == "parallel.expert = 4: must divide model.moe's experts = 6 (try 2)");
  CHECK(refused({"parallel.expert=3"}, 4) == "parallel.expert = 3: must divide the 4 ranks of a stage (try 2)");
  CHECK(refused({"parallel.expert=2", "parallel.pipeline=4"}, 4) ==
        "parallel.expert = 2: must divide the 1 rank of a stage (try 1)");
  CHECK(refused({"parallel.expert_room=2.5"}, 4) ==
        "parallel.expert_room = 2.5: has no effect unless parallel.expert is greater than 1 (try --set "
        "parallel.expert_room=null or leaving it out)");
  CHECK(refused({"parallel.expert_tensor=2"}, 4) ==
        "parallel.expert_tensor = 2: has no effect unless parallel.expert is greater than 1 (try --set "
        "parallel.expert_tensor=null or leaving it out)");
  CHECK(refused({"parallel.expert=2", "parallel.tensor=4", "parallel.expert_tensor=2"}, 8) ==
        "parallel.expert_tensor = 2: must be 1 or parallel.tensor = 4 (try 4)");
  CHECK(refused({"parallel.expert=3", "parallel.tensor=2", "parallel.expert_tensor=2"}, 4) ==
        "parallel.expert = 3: times parallel.expert_tensor = 2 must divide the 4 ranks of a stage (try 2)");
  CHECK(refused({"parallel.expert=2", "parallel.tensor=4", "memory.offload_optimizer=disk", "memory.disk_path=drive",
                 "memory.offload_gradients=disk"},
                4) ==
        "memory.offload_gradients = \"disk\": must be \"none\" with one data rank but several ranks that have the same "
        "experts with parallel.expert = 2 (try \"none\")");
  for (const char* other : {"optimizer.type=lamb", "parallel.elastic=true", R"(comm.compression={"kind":"int8"})"}) {
    INFO(other);
    CHECK(refused({"parallel.expert=2", other}, 4).find("parallel.expert = 2") != std::string::npos);
  }
}

}  // namespace gptrain::config_test
