// The section "optimizer".
#include "config/field_builder.h"
#include "config/fields.h"

namespace gptrain::inline config {
namespace {

// Updates are computed in f32, where numbers below 1.18e-38 are subnormal: they lose digits or count as 0.
constexpr double least_normal = 1.2e-38;

Builder betas_field() {
  Builder builder;
  builder.path = "optimizer.betas";
  builder.description =
      "decay rates of the first and the second moment; lion: share of the moment in a step, and decay rate of the "
      "moment; default: [0.9, 0.95], lion's [0.9, 0.99], lamb's, onebit-adam's and zero-one-adam's [0.9, 0.999]";
  builder.rule = NumberPairRule{{.min = 0, .max = 1, .max_excluded = true}};
  builder.get = [](const RunConfig& config) -> Json {
    return Json::array({config.optimizer.beta1, config.optimizer.beta2});
  };
  builder.set = [](RunConfig& config, const Json& json) {
    config.optimizer.beta1 = json[0].get<double>();
    config.optimizer.beta2 = json[1].get<double>();
  };
  return builder;
}

template <OptimizerKind... kinds>
Dependency of_type(const std::string& names) {
  return {
      "optimizer.type", "optimizer.type is " + names,
      when(&RunConfig::optimizer, [](const OptimizerConfig& optimizer) { return ((optimizer.type == kinds) || ...); })};
}

}  // namespace

void add_optimizer_fields(std::vector<Field>& table) {
  const auto section = &RunConfig::optimizer;
  using O = OptimizerConfig;
  const Dependency scales{"optimizer.lr_scaling", "optimizer.lr_scaling is linear or sqrt",
                          when(&RunConfig::optimizer, [](const OptimizerConfig& optimizer) {
                            return optimizer.lr_scaling != LrScaling::none;
                          })};
  using enum OptimizerKind;
  table.insert(
      table.end(),
      {
          words<O, OptimizerKind>(
              "optimizer.type", section, &O::type, named_words<OptimizerKind>(optimizer_names), {},
              "AdamW keeps two moments in fp32, adamw-8bit those of matrices in 8 bits; SGD and Lion keep one; LAMB "
              "and LARS scale the steps of AdamW and SGD by norms of each matrix; Muon orthogonalises the momentum of "
              "each matrix of the blocks; Adafactor keeps second moments only for the rows and columns of a matrix; "
              "onebit-adam is AdamW that freezes its second moments and then sends signs of the first ones; "
              "zero-one-adam "
              "updates second moments in ever fewer steps, sends signs in all others, and later trains some steps "
              "without any exchange"),
          field("optimizer.lr", section, &O::lr, NumberRule{.min = 0, .max = 10, .min_excluded = true},
                "peak learning rate")
              .required("0.0003")
              .changeable(),
          words<O, LrScaling>("optimizer.lr_scaling", section, &O::lr_scaling,
                              {{"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}}, {},
                              "factor of lr, schedule.min_lr and schedule.warmup_steps: none (1), linear (batch.global "
                              "/ base_batch) or sqrt (the square root of that)")
              .changeable(),
          field("optimizer.base_batch", section, &O::base_batch,
                IntegerRule{1, static_cast<uint64_t>(max_batch_sequences), {}},
                "sequences of the batch that lr and schedule are meant for")
              .required("256")
              .only_with(scales)
              .changeable(),
          betas_field()
              .derived("[0.9,0.95]")
              .only_with(of_type<adamw, adamw_8bit, lion, lamb, muon, onebit_adam, zero_one_adam>(
                  "adamw, adamw-8bit, lion, lamb, muon, onebit-adam or zero-one-adam"))
              .changeable(),
          field("optimizer.eps", section, &O::eps, NumberRule{.min = least_normal, .max = 1},
                "added to the root of the second moment, by adafactor to the square of each gradient; default: 1e-8, "
                "lamb's 1e-6, adafactor's 1e-30")
              .derived("1e-08")
              .only_with(of_type<adamw, adamw_8bit, lamb, muon, adafactor, onebit_adam, zero_one_adam>(
                  "adamw, adamw-8bit, lamb, muon, adafactor, onebit-adam or zero-one-adam"))
              .changeable(),
          field("optimizer.momentum", section, &O::momentum, NumberRule{.min = 0, .max = 1, .max_excluded = true},
                "share of the moment that each step keeps; default: 0.9, muon's 0.95")
              .derived("0.9")
              .only_with(of_type<sgd, lars, muon>("sgd, lars or muon")),
          field("optimizer.nesterov", section, &O::nesterov, BooleanRule{},
                "the step looks ahead by the momentum, after Nesterov; default: false, muon's true")
              .derived("false")
              .only_with({"optimizer.momentum", "optimizer.type is sgd or muon and momentum greater than 0",
                          when(&RunConfig::optimizer,
                               [](const OptimizerConfig& optimizer) {
                                 return (optimizer.type == sgd || optimizer.type == muon) && optimizer.momentum > 0;
                               })}),
          field("optimizer.trust_coefficient", section, &O::trust_coefficient,
                NumberRule{.min = 0, .max = 1, .min_excluded = true},
                "the step of a matrix, before momentum, is scaled to about trust_coefficient * learning rate * norm of "
                "the matrix")
              .only_with(of_type<lars>("lars"))
              .changeable(),
          words<O, NewtonSchulzProducts>(
              "optimizer.newton_schulz", section, &O::newton_schulz,
              {{"auto", NewtonSchulzProducts::as_compute}, {"fp32", NewtonSchulzProducts::fp32}}, {},
              "type of the products in muon's orthogonalisation; auto: bf16 if precision.compute is bf16 or bf16-pure, "
              "otherwise fp32")
              .only_with(of_type<muon>("muon"))
              .changeable(),
          field("optimizer.qk_clip", section, &O::qk_clip,
                NumberRule{.min = least_normal, .max = 1e6, .may_be_zero = true},
                "MuonClip's bound of attention scores: after a step in which a score was larger, the head's weights of "
                "queries and keys are scaled down so that this score would have been the bound; 0: none")
              .usually("100.0")
              .only_with(of_type<muon>("muon"))
              .changeable(),
          field("optimizer.beta2_decay", section, &O::beta2_decay,
                NumberRule{.min = -1, .max = 0, .max_excluded = true},
                "step t keeps 1 - t^beta2_decay of the second moments")
              .only_with(of_type<adafactor>("adafactor"))
              .changeable(),
          field("optimizer.clip_threshold", section, &O::clip_threshold, NumberRule{.min = least_normal, .max = 1e9},
                "largest root mean square of the step of a matrix or vector, before it is multiplied by the learning "
                "rate")
              .only_with(of_type<adafactor>("adafactor"))
              .changeable(),
          field("optimizer.scale_parameter", section, &O::scale_parameter, BooleanRule{},
                "lr is multiplied by the root mean square of each matrix or vector, or by eps2 if that is larger; "
                "false: lr alone")
              .only_with(of_type<adafactor>("adafactor")),
          field("optimizer.eps2", section, &O::eps2, NumberRule{.min = least_normal, .max = 1},
                "least root mean square that scale_parameter multiplies lr by")
              .only_with({"optimizer.scale_parameter", "optimizer.type is adafactor and scale_parameter is true",
                          when(&RunConfig::optimizer,
                               [](const OptimizerConfig& optimizer) {
                                 return optimizer.type == adafactor && optimizer.scale_parameter;
                               })}),
          field(
              "optimizer.freeze_step", section, &O::freeze_step, IntegerRule{1, max_steps, {}},
              "steps at the run's start (with onebit-adam steps of AdamW); after them the second moments stay as they "
              "are; 15 to 25% of all steps are usual")
              .required("1000")
              .only_with(of_type<onebit_adam, zero_one_adam>("onebit-adam or zero-one-adam")),
          field("optimizer.variance_scaler", section, &O::variance_scaler, IntegerRule{1, max_steps, {}},
                "number of updates of the second moments after which the distance between two of them doubles")
              .only_with(of_type<zero_one_adam>("zero-one-adam")),
          field("optimizer.local_scaler", section, &O::local_scaler, IntegerRule{1, max_steps, {}},
                "from freeze_step on, the distance between two exchanges of momenta doubles after every so many steps")
              .only_with(of_type<zero_one_adam>("zero-one-adam")),
          field("optimizer.local_most", section, &O::local_most, IntegerRule{1, 1 << 20, {}},
                "largest number of steps from one exchange to the next, a power of two; 1: every step exchanges")
              .only_with(of_type<zero_one_adam>("zero-one-adam")),
          field("optimizer.weight_decay", section, &O::weight_decay, NumberRule{.min = 0, .max = 10},
                "weight decay, multiplied by the learning rate and decoupled from the gradient (lars: added to it); "
                "norms and biases do not decay")
              .changeable(),
          field("optimizer.clip_norm", section, &O::clip_norm,
                NumberRule{.min = least_normal, .max = 1e9, .may_be_zero = true},
                "largest global norm of the gradients; 0: no clipping")
              .changeable(),
          field("optimizer.ema", section, &O::ema, NumberRule{.min = 0, .max = 1, .max_excluded = true},
                "decay rate, such as 0.999, of an exponential moving average of the weights that is kept beside them; "
                "0: none is kept")
              .usually("0.999")
              .changeable(),
      });
}

}  // namespace gptrain::config
