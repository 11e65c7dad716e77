// Checks and benches every op of every backend in one binary.
//
// A case is one op on one shape. It creates its operands with a Trial, runs the op, and compares the results with a
// float64 reference. The Trial does the rest: operands are between guard bands (also between rows, if a stride is
// requested), outputs start as NaN, inputs and operands that the op's description only reads must be unchanged, and the
// op runs again with other thread counts, which must give the same bits (except for linears of a backend that is not
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

// SplitMix64, from which operands are filled. Unrelated to the generator under test.
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

  // Returns the elements in row order, without gaps between rows.
  std::vector<double> values() const;
  void set_values(const std::vector<double>& values);  // rounds to the dtype
  double at(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, double value);

 private:
  friend class Trial;
  void* device_data() const;
  std::byte* element(int64_t row, int64_t col);
  const std::byte* element(int64_t row, int64_t col) const;
  void poison();
  bool holds(const void* address) const;
  // Returns damage to the parts that an op must not change: the guard bands and, unless `writable`, everything. Empty:
  // none.
  std::string damage(bool writable) const;

  DType dtype_;
  int64_t rows_, cols_, stride_;
  bool writable_ = true;
  std::vector<std::byte> host_;    // with guards
  std::vector<std::byte> before_;  // host_ as it was uploaded
  std::unique_ptr<DeviceMemory> device_;
};

// One backend in one or more configurations. The first is checked; the others must give its bits.
struct BackendUnderTest {
  std::string name;
  std::vector<std::unique_ptr<Backend>> variants;
  bool thread_independent;  // true: linears also give the same bits
  bool f16;                 // true: f16 is supported and checked
};

// Returns true for ops whose bits may depend on the number of threads.
template <typename Op>
constexpr bool bits_depend_on_threads = std::is_same_v<Op, LinearForward> || std::is_same_v<Op, LinearBackwardInput> ||
                                        std::is_same_v<Op, LinearBackwardWeight>;

// Collects the memory of the operands that an op describes.
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

// Thrown if a case needs something that the backend under test lacks; the case is skipped and counted as skipped.
struct NotOnThisBackend {
  std::string_view missing;
};

// The run of one case: its operands, random numbers and faults.
class Trial {
 public:
  Trial(BackendUnderTest& backend, uint64_t seed)
      : random(seed), backend_(backend), wide_gaps_(random.next() % 2 == 0) {}

  Random random;
  // Says that the op supports f16 on the CPU, too.
  void allow_f16() { op_has_f16_ = true; }
  Backend& backend() { return *backend_.variants.front(); }
  const std::vector<std::string>& failures() const { return failures_; }
  void fail(const std::string& message) { failures_.push_back(message); }

  // Returns an operand of normal numbers times `scale`, which repeat after a million. `gap`: elements between the end
  // of a row and the start of the next; in half of all trials eight times as many if eight divides `cols`, so that rows
  // are aligned for kernels that take eight elements at a time.
  const Operand& input(DType dtype, int64_t rows, int64_t cols, double scale = 1, int64_t gap = 0);
  Operand& output(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0);  // starts as NaN
  // Returns an operand that is read and written: normal numbers times `scale`.
  Operand& in_out(DType dtype, int64_t rows, int64_t cols, double scale = 1, int64_t gap = 0);
  // Returns an operand of given numbers, rounded to the dtype.
  const Operand& input(DType dtype, int64_t rows, int64_t cols, const std::vector<double>& values, int64_t gap = 0);

  // Returns guarded device memory with `values`: tokens, segments, StepState.
  template <typename T>
  const Operand& input_array(const std::vector<T>& values) {
    return array(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), false);
  }
  template <typename T>
  Operand& in_out_value(const T& value) {
    return array(&value, sizeof(T), true);
  }
  // Returns a row of bytes.
  Operand& in_out_array(const std::vector<uint8_t>& values) { return array(values.data(), std::ssize(values), true); }
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
  // results of the first variant in the operands.
  template <typename Op>
  void run(const Op& op) {
    DescribedOperands described;
    for_each_operand(op, described);
    run_variants([&op](Backend& backend) { backend.run(op); }, scratch_bytes(op), described,
                 backend_.thread_independent || !bits_depend_on_threads<Op>);
  }

  // Checks that the op throws std::logic_error.
  template <typename Op>
  void expect_rejected(const Op& op, std::string_view why) {
    run_rejected([&op](Backend& backend) { backend.run(op); }, scratch_bytes(op), why);
  }

  // Checks the same for an op with invalid memory contents, which a device does not examine.
  template <typename Op>
  void expect_rejected_contents(const Op& op, std::string_view why) {
    if (backend().target().kind == Target::Kind::cpu) expect_rejected(op, why);
  }

  // Checks that every element is within `factor` times the largest error of `plain` (a straightforward low-precision
  // version) plus one unit in the last place of the output's dtype, and that the root-mean-square error is within twice
  // that of `plain` plus half a unit, which finds a bias that hides below the largest error. `noise` is added to both:
  // the f32 error of a difference of nearly equal numbers, where `plain` may be exact by chance.
  void expect_close(std::string_view what, const Operand& actual, const std::vector<double>& reference,
                    const std::vector<double>& plain, double factor = 3, double noise = 0);
  // Checks that every element is within `bound` (absolute) plus one unit in the last place of the output's dtype. The
  // caller's comment derives the bound.
  void expect_near(std::string_view what, const Operand& actual, const std::vector<double>& reference, double bound);
  void expect_equal(std::string_view what, const Operand& actual, const std::vector<double>& reference);
  void expect_true(bool condition, std::string_view what);

  // For bench cases: times the op on the first variant and stores the result for the suite to print.
  template <typename Op>
  void time(const Op& op) {
    time_op([&op](Backend& backend) { backend.run(op); }, footprint(op, backend().target()));
  }
  struct Timing {
    double seconds = 0;  // fastest run: other work on the machine only adds to the time
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
  // Returns for each operand whether the op may write to it. Fails the case if such an operand was created as an input.
  std::vector<bool> writable_operands(const DescribedOperands& described);
  void run_variants(const Runner& runner, const ScratchBytes& scratch_bytes, const DescribedOperands& described,
                    bool same_bits);
  void run_rejected(const Runner& runner, const ScratchBytes& scratch_bytes, std::string_view why);
  void time_op(const Runner& runner, const Footprint& footprint);

  BackendUnderTest& backend_;
  bool wide_gaps_, op_has_f16_ = false;
  std::deque<Operand> operands_;
  std::vector<std::string> failures_;
  Timing timing_;
};

using Body = std::function<void(Trial&)>;

class Suite {
 public:
  // `large`: benches use sizes that exceed a GPU's caches.
  explicit Suite(bool large) : large_(large) {}

  // Returns the rows of a bench with operands in `dtype`; on a GPU f32 benches stay small, as training in f32 matters
  // less.
  int64_t bench_rows(DType dtype, int64_t usual, int64_t large) const {
    return large_ && dtype == DType::bf16 ? large : usual;
  }

  // `description` names shape and dtypes.
  template <typename Op>
  void add(std::string description, Body body) {
    if constexpr (has_f16_on_cpu<Op>) {
      body = [body = std::move(body)](Trial& trial) {
        trial.allow_f16();
        body(trial);
      };
    }
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

// Returns the state of a step after `updates` updates, with a learning rate and gradient scale that show if an op omits
// them.
StepState state_after(int64_t updates, bool skip = false);

template <typename Op>
using SegmentOf = std::remove_const_t<std::remove_pointer_t<decltype(Op::segments)>>;

// Sets an update op's table of segments and its state.
template <typename Op>
void set_segments(Trial& trial, Op& op, const std::vector<SegmentOf<Op>>& segments, const StepState& state) {
  op.segments = Trial::pointer<const SegmentOf<Op>>(trial.input_array(segments));
  op.num_segments = std::ssize(segments);
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
}

}  // namespace gptrain::ops_test
