// Checks and benches every op of every backend in one binary.
//
// A case is one op on one shape. It makes its operands with a Trial, runs the op, and compares what came out with a
// float64 reference. The Trial does the rest: operands lie between guard bands (also between rows, where a stride is
// asked for), outputs start as NaN, inputs and what the op's description only reads must be unchanged, and the op is
// run again with other thread counts, which must give the same bits (but for the linears of a backend that is not
// thread-independent).
//
//   void add_cases(Suite& suite) {
//     suite.add<Cast>("N=3 f32 to bf16", [](Trial& trial) {
//       const Operand& from = trial.input(DType::f32, 3, 5);
//       Operand& to = trial.output(DType::bf16, 3, 5);
//       trial.run(Cast{from.matrix(), to.matrix()});
//       trial.expect_near("to", to, from.values(), bound);
//     });
//   }
//   const Registration registration(add_cases);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ops/backend.h"
#include "ops/footprint.h"
#include "ops/operands.h"

namespace gptrain::ops_test {

// SplitMix64: what operands are filled from. Unrelated to the generator under test.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  double uniform();  // [0, 1)
  double normal();
  int64_t below(int64_t bound);  // [0, bound)

 private:
  uint64_t state_;
};

// One operand: a copy on the host and memory of the device, each between guard bands. Owned by its Trial.
class Operand {
 public:
  Operand(Backend& backend, DType dtype, int64_t rows, int64_t cols, int64_t stride);

  Matrix matrix() const { return {device_data(), dtype_, rows_, cols_, stride_}; }
  DType dtype() const { return dtype_; }

  // Elements in row order, without what lies between rows.
  std::vector<double> values() const;
  void set_values(const std::vector<double>& values);  // rounded to the dtype
  double at(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, double value);

 private:
  friend class Trial;
  void* device_data() const;
  std::byte* element(int64_t row, int64_t col);
  const std::byte* element(int64_t row, int64_t col) const;
  void poison();
  bool holds(const void* address) const;
  // Changes where an op must leave memory alone: the guard bands and, where it writes nothing, everything.
  std::string damage(bool writable) const;

  DType dtype_;
  int64_t rows_, cols_, stride_;
  bool writable_ = true;
  std::vector<std::byte> host_;    // with guards
  std::vector<std::byte> before_;  // host_ as it was uploaded
  std::unique_ptr<DeviceMemory> device_;
};

// One backend in one or more configurations; the first is the one that is checked, the others must give its bits.
struct BackendUnderTest {
  std::string name;
  std::vector<std::unique_ptr<Backend>> variants;
  bool thread_independent;  // the linears give the same bits, too
  bool f16;                 // has it, and it is checked
};

// Ops whose bits may depend on the number of threads.
template <typename Op>
constexpr bool bits_depend_on_threads = std::is_same_v<Op, LinearForward> || std::is_same_v<Op, LinearBackwardInput> ||
                                        std::is_same_v<Op, LinearBackwardWeight>;

// Places of the operands that an op describes.
class DescribedOperands final : public OperandVisitor {
 public:
  struct Use {
    std::string name;
    const void* data;
    bool written;
  };
  void operand(std::string_view name, const Matrix& matrix, Access access, const Form& form) override;
  const std::vector<Use>& uses() const { return uses_; }

 private:
  std::vector<Use> uses_;
};

// Thrown where a case asks for more than the backend under test has: the case is skipped, and counted as such.
struct NotOnThisBackend {
  std::string_view missing;
};

// The run of one case: its operands, its random numbers and what went wrong.
class Trial {
 public:
  Trial(BackendUnderTest& backend, uint64_t seed)
      : random(seed), backend_(backend), wide_gaps_(random.next() % 2 == 0) {}

  Random random;
  Backend& backend() { return *backend_.variants.front(); }
  const std::vector<std::string>& failures() const { return failures_; }
  void fail(const std::string& message) { failures_.push_back(message); }

  // Normal numbers times `scale`, the same again and again after a million of them. `gap`: elements between the end of
  // a row and the start of the next; in half of all trials eight times as many where eight divides `cols`, so that rows
  // begin where kernels want them that take eight elements at a time.
  const Operand& input(DType dtype, int64_t rows, int64_t cols, double scale = 1, int64_t gap = 0);
  Operand& output(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0);  // NaN
  // Read and written: normal numbers times `scale`.
  Operand& in_out(DType dtype, int64_t rows, int64_t cols, double scale = 1, int64_t gap = 0);
  // Given numbers, rounded to the dtype.
  const Operand& input(DType dtype, int64_t rows, int64_t cols, const std::vector<double>& values, int64_t gap = 0);

  // Device memory that holds `values`, guarded as any operand: tokens, segments, StepState.
  template <typename T>
  const Operand& input_array(const std::vector<T>& values) {
    return array(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), false);
  }
  template <typename T>
  Operand& in_out_value(const T& value) {
    return array(&value, sizeof(T), true);
  }
  // A row of bytes.
  Operand& in_out_array(const std::vector<uint8_t>& values) {
    return array(values.data(), std::ssize(values), true);
  }
  template <typename T>
  static std::vector<T> array_of(const Operand& operand, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    copy_bytes(operand, values.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  static T* pointer(const Operand& operand) {
    return static_cast<T*>(operand.device_data());
  }
  template <typename T>
  static T value(const Operand& operand) {
    T result;
    copy_bytes(operand, &result, sizeof(T));
    return result;
  }

  // Uploads every operand, runs the op on every variant of the backend, checks guards, inputs and bits, and leaves the
  // results of the first in the operands.
  template <typename Op>
  void run(const Op& op) {
    DescribedOperands described;
    for_each_operand(op, described);
    run_variants([&op](Backend& backend) { backend.run(op); }, scratch_bytes(op), described,
                 backend_.thread_independent || !bits_depend_on_threads<Op>);
  }

  // The op must throw std::logic_error.
  template <typename Op>
  void expect_rejected(const Op& op, std::string_view why) {
    run_rejected([&op](Backend& backend) { backend.run(op); }, scratch_bytes(op), why);
  }

  // The same for an op that is wrong by what its memory holds, which a device does not look at.
  template <typename Op>
  void expect_rejected_contents(const Op& op, std::string_view why) {
    if (backend().target().kind == Target::Kind::cpu) expect_rejected(op, why);
  }

  // Every element within `factor` times the largest error of `plain` (a straightforward version in low precision) plus
  // one unit in the last place of the output's dtype; and the root-mean-square error within twice that of `plain` plus
  // half a unit, which finds a bias that hides below the largest error. `noise` is added to both: the error that f32
  // makes in a difference of nearly equal numbers, where `plain` may be exact by chance.
  void expect_close(std::string_view what, const Operand& actual, const std::vector<double>& reference,
                    const std::vector<double>& plain, double factor = 3, double noise = 0);
  // Every element within `bound` (absolute) plus one unit in the last place of the output's dtype. The caller says
  // where the bound comes from.
  void expect_near(std::string_view what, const Operand& actual, const std::vector<double>& reference, double bound);
  void expect_equal(std::string_view what, const Operand& actual, const std::vector<double>& reference);
  void expect_true(bool condition, std::string_view what);

  // Bench cases: times the op on the first variant and keeps the result for the suite to print.
  template <typename Op>
  void time(const Op& op) {
    time_op([&op](Backend& backend) { backend.run(op); }, footprint(op, backend().target()));
  }
  struct Timing {
    double seconds = 0;  // of the fastest run: what others do on the machine only adds to it
    Footprint footprint;
  };
  const Timing& timing() const { return timing_; }

 private:
  using Runner = std::function<void(Backend&)>;
  using ScratchBytes = std::function<int64_t(const Target&)>;

  template <typename Op>
  static ScratchBytes scratch_bytes(const Op& op) {
    return [&op](const Target& target) { return footprint(op, target).scratch_bytes; };
  }

  Operand& add(DType dtype, int64_t rows, int64_t cols, int64_t gap, bool writable);
  Operand& array(const void* data, int64_t bytes, bool writable);
  static void copy_bytes(const Operand& operand, void* to, size_t bytes);
  void upload_all(Backend& backend);
  void download_all(Backend& backend);
  // Tells for each operand whether the op may write to it. Fails where the case made that an input.
  std::vector<bool> writable_operands(const DescribedOperands& described);
  void run_variants(const Runner& runner, const ScratchBytes& scratch_bytes, const DescribedOperands& described,
                    bool same_bits);
  void run_rejected(const Runner& runner, const ScratchBytes& scratch_bytes, std::string_view why);
  void time_op(const Runner& runner, const Footprint& footprint);

  BackendUnderTest& backend_;
  bool wide_gaps_;
  std::deque<Operand> operands_;
  std::vector<std::string> failures_;
  Timing timing_;
};

using Body = std::function<void(Trial&)>;

class Suite {
 public:
  // large: benches are to be of sizes that a GPU's caches do not hold.
  explicit Suite(bool large) : large_(large) {}

  // Rows of a bench of operands in `dtype`. On a GPU what trains in f32 is not what counts.
  int64_t bench_rows(DType dtype, int64_t usual, int64_t large) const {
    return large_ && dtype == DType::bf16 ? large : usual;
  }

  // `description` names shape and dtypes.
  template <typename Op>
  void add(std::string description, Body body) {
    cases_.push_back({Op::name, std::move(description), std::move(body)});
  }
  template <typename Op>
  void add_bench(std::string description, Body body) {
    benches_.push_back({Op::name, std::move(description), std::move(body)});
  }

  struct Case {
    std::string_view op;
    std::string description;
    Body body;
  };
  const std::vector<Case>& cases() const { return cases_; }
  const std::vector<Case>& benches() const { return benches_; }

 private:
  bool large_;
  std::vector<Case> cases_;
  std::vector<Case> benches_;
};

// Adds the cases of one file to the suite.
struct Registration {
  explicit Registration(void (*add_cases)(Suite&));
};

// Of a step after so many updates, with a learning rate and a scale of gradients that show where they are left out.
StepState state_after(int64_t updates, bool skip = false);

template <typename Op>
using SegmentOf = std::remove_const_t<std::remove_pointer_t<decltype(Op::segments)>>;

// Gives an op of updates its table of segments and its state.
template <typename Op>
void set_segments(Trial& trial, Op& op, const std::vector<SegmentOf<Op>>& segments, const StepState& state) {
  op.segments = Trial::pointer<const SegmentOf<Op>>(trial.input_array(segments));
  op.num_segments = std::ssize(segments);
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
}

}  // namespace gptrain::ops_test
