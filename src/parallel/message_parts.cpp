#include "parallel/message_parts.h"

namespace gptrain::inline parallel {

int64_t whole_units(int64_t elements) { return (elements + unit_multiple - 1) / unit_multiple * unit_multiple; }

std::vector<PlainRun> plain_runs(const std::vector<CodedTensor>& coded, int64_t elements, int64_t& at) {
  std::vector<PlainRun> plain;
  const auto add = [&](int64_t first, int64_t end) {
    if (first == end) return;
    plain.push_back({.first = first, .count = end - first, .at = at});
    at += whole_units(end - first);
  };
  int64_t next = 0;
  for (const CodedTensor& tensor : coded) {
    add(next, tensor.first);
    next = tensor.first + tensor.count;
  }
  add(next, elements);
  return plain;
}

Matrix floats(std::byte* buffer, int64_t first, int64_t count) {
  return {buffer + first * dtype_bytes(DType::f32), DType::f32, 1, count};
}

void copy_plain_runs(Backend& backend, const std::vector<PlainRun>& runs, const UnitGradients& of, bool to_sum) {
  for (const PlainRun& run : runs) {
    const Matrix gradients = floats(of.whole, run.first, run.count), summed = floats(of.narrow, run.at, run.count);
    backend.run(Cast{.from = to_sum ? gradients : summed, .to = to_sum ? summed : gradients});
  }
}

void keep_errors(Backend& backend, const GradientCompression& compression, int64_t unit) {
  const UnitMessages& of = compression.messages.units[unit];
  if (of.num_residuals == 0) return;
  backend.run(KeepResidual{.state = compression.state,
                           .errors = floats(compression.errors, of.first_residual, of.num_residuals),
                           .residual = floats(compression.residuals, of.first_residual, of.num_residuals)});
}

}  // namespace gptrain::parallel
