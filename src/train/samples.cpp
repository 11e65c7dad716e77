#include "train/samples.h"

#include <fmt/format.h>
#include <string>

#include "base/error.h"
#include "base/output.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"
#include "comm/texts.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "step/inference.h"
#include "train/generate.h"

namespace gptrain::inline train {
namespace {

namespace fs = std::filesystem;

fs::path sampling_folder(const fs::path& out) { return out / ".sampling"; }

}  // namespace

void require_tokenizer_of_samples(const RunSettings& run, int64_t model_vocab_size, const RunTokenizer& tokenizer) {
  if (run.sample_every_steps == 0) return;
  if (tokenizer.tokenizer) {
    Encoder encoder(tokenizer.tokenizer);
    const auto tokens = static_cast<int64_t>(encoder.encode(run.sample_prompt).size());
    if (tokens + 1 + run.sample_tokens <= most_tokens_of_sample(run)) return;
    throw Error(ExitCode::usage,
                "run.sample_prompt = {}: its {} bytes become {} tokens after normalization, more than memory is "
                "planned for; choose another prompt",
                run.sample_prompt, run.sample_prompt.size(), tokens);
  }
  if (!tokenizer.record && model_vocab_size == bytes_vocabulary) return;  // generate() uses "bytes" then
  throw Error(ExitCode::usage,
              "run.sample_every_steps = {}: the tokenizer of the data is not known; name it in data.tokenizer",
              run.sample_every_steps);
}

Samples::Samples(const RunContext& context, FolderWatch& folder, TrainingStep& step, Reporter& reporter,
                 const RunTokenizer& tokenizer)
    : context_(context), folder_(folder), step_(step), reporter_(reporter), tokenizer_(tokenizer) {
  if (context.config.run.sample_every_steps > 0)
    groups_ = std::make_unique<RankGroups>(with_whole_experts(context.config), context.world);
  // A killed run may have left the folder behind.
  if (context.leads()) remove_folder(sampling_folder(folder.out()));
}

bool Samples::is_due(int64_t step) const {
  const int64_t every = context_.config.run.sample_every_steps;
  return every > 0 && step % every == 0;
}

void Samples::run(const RunProgress& progress) {
  context_.world.activity().set_phase("sample");
  const fs::path saved = checkpoints_folder(folder_.out()) / step_folder_name(progress.step);
  std::error_code ignored;
  const bool is_saved = context_.leads() && fs::exists(saved / manifest_name, ignored);
  if (!broadcast_text(context_.all(), is_saved ? "yes" : "", 0).empty()) {
    write_text(saved, progress.step);
    return;
  }
  const fs::path folder = sampling_folder(folder_.out());
  if (context_.leads()) remove_folder(folder);
  try {
    save_weights(context_.config, step_, progress, context_.groups, context_.world, folder, tokenizer_.record);
  } catch (const PeerGone&) {
    throw;
  } catch (const Error& error) {
    // The run stops, and its state is saved where that can still be done.
    if (context_.leads()) folder_.fail(fmt::format("no sample after step {}: {}", progress.step, error.what()));
    return;
  }
  write_text(checkpoints_folder(folder) / step_folder_name(progress.step), progress.step);
  if (context_.leads()) remove_folder(folder);
}

void Samples::write_text(const fs::path& checkpoint, int64_t step) {
  const RunSettings& run = context_.config.run;
  const GenerateOptions options{.checkpoint = checkpoint,
                                .tokenizer = {},
                                .prompts = {run.sample_prompt},
                                .tokens = run.sample_tokens,
                                .seed = run.seed,
                                .threads = context_.threads,
                                .reserved_tokens = most_tokens_of_sample(run)};
  const SharedText written = generate_sharded(options, context_.config.parallel, *groups_, context_.world);
  if (written.text) {
    // The text may end inside a character, and a model of bytes may write invalid UTF-8.
    reporter_.report_sample(step, run.sample_prompt, replace_invalid_utf8(*written.text));
  } else if (context_.leads()) {
    print_err("warning: no sample after step {}: {}\n", step, written.reason);
  }
}

}  // namespace gptrain::train
