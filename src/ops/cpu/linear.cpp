#include "ops/cpu/linear.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "base/error.h"
#include "ops/cpu/kernels/matrix_kernels.h"
#include "ops/cpu/scratch_carver.h"

namespace gptrain {
namespace {

// c [rows, cols] = a [rows, depth] b [depth, cols] (+ bias), or += where `accumulate`. A transposed factor is stored
// with its second dimension as rows.
struct Product {
  Matrix a, b, bias, c;
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;

  int64_t rows() const { return c.rows; }
  int64_t cols() const { return c.cols; }
  int64_t depth() const { return a_transposed ? a.rows : a.cols; }
};

bool is_dense(const Matrix& matrix) { return matrix.stride == matrix.cols || matrix.rows <= 1; }

// What a primitive of oneDNN is made for.
struct ProductKey {
  int64_t rows, cols, depth;
  DType operand_dtype, c_dtype;
  bool a_transposed, b_transposed, bias, accumulate;
  auto operator<=>(const ProductKey&) const = default;
};

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// A primitive with its memory objects, so that a call only exchanges pointers.
struct Primitive {
  dnnl::matmul matmul;
  dnnl::memory a, b, c, bias, scratch;
};

// oneDNN splits its work over as many threads as OpenMP would use by default.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(omp_get_max_threads()), count_(count) {
    if (count_ != before_) omp_set_num_threads(count_);
  }
  ~ThreadCount() {
    if (count_ != before_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
  int count_;
};

TiledLinearBuffers carve_tiled(ScratchCarver& carver) {
  constexpr int64_t square = tile_size * tile_size;
  TiledLinearBuffers buffers;
  buffers.a = carver.take<Unit>(square);
  buffers.b = carver.take<Unit>(square);
  buffers.staging = carver.take<Unit>(square);
  buffers.c = carver.take<float>(square);
  return buffers;
}

}  // namespace

int64_t cpu_scratch_bytes(const LinearForward&, int num_threads) { return linear_scratch_bytes(num_threads); }
int64_t cpu_scratch_bytes(const LinearBackwardInput&, int num_threads) { return linear_scratch_bytes(num_threads); }
int64_t cpu_scratch_bytes(const LinearBackwardWeight&, int num_threads) { return linear_scratch_bytes(num_threads); }

class CpuLinear::Products {
 public:
  explicit Products(int num_threads)
      : num_threads_(num_threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  // Throws Error(device) when `bytes` is below the bound.
  void use_scratch(std::byte* scratch, int64_t bytes) {
    if (bytes < linear_scratch_bytes(num_threads_)) {
      throw Error(ExitCode::device, "a linear needs {} bytes of scratch memory and has {}",
                  linear_scratch_bytes(num_threads_), bytes);
    }
    scratch_ = scratch;
  }

  void run(const Product& product) {
    const ThreadCount threads(num_threads_);
    if (const Primitive* const primitive = find(product)) {
      execute(*primitive, product);
    } else {
      run_tiled(product);
    }
  }

  // The sum over a long dimension, in slices where oneDNN would otherwise want a copy of c per thread: both factors
  // are stored with the depth as rows (a_transposed, b not), and c is f32.
  void run_long_sum(const Product& product) {
    const ThreadCount threads(num_threads_);
    const int64_t depth = product.depth();
    constexpr int64_t shortest_slice = 512;
    int64_t slice = depth;
    while (!run_slices(product, slice)) {
      slice = (slice + 1) / 2;
      if (slice < shortest_slice) return run_tiled(product);
    }
  }

  void add_column_sums(const Matrix& values, const Matrix& sums, bool accumulate) {
    const MatrixKernels& kernels = select_matrix_kernels();
    const int64_t rounds = (values.cols + num_threads_ * column_sum_width - 1) / (num_threads_ * column_sum_width);
    const int64_t parts = rounds * num_threads_;
    const int64_t width = ((values.cols + parts - 1) / parts + 15) / 16 * 16;
#pragma omp parallel for num_threads(num_threads_) schedule(static)
    for (int64_t col = 0; col < values.cols; col += width) {
      const int64_t cols = std::min(width, values.cols - col);
      kernels.column_sums(values.column_range(col, cols).data, values.dtype, values.stride, values.rows, cols,
                          accumulate, sums.as<float>() + col);
    }
  }

 private:
  static Product slice_of(const Product& product, int64_t first, int64_t count) {
    Product part = product;
    part.a = product.a.row_range(first, count);
    part.b = product.b.row_range(first, count);
    part.accumulate = product.accumulate || first > 0;
    return part;
  }

  // False, and nothing done, when oneDNN does not serve every slice.
  bool run_slices(const Product& product, int64_t slice) {
    const int64_t depth = product.depth();
    const int64_t last = (depth - 1) / slice * slice;
    for (const int64_t first : {int64_t{0}, std::min(slice, last), last}) {
      if (find(slice_of(product, first, std::min(slice, depth - first))) == nullptr) return false;
    }
    for (int64_t first = 0; first < depth; first += slice) {
      const Product part = slice_of(product, first, std::min(slice, depth - first));
      execute(*find(part), part);
    }
    return true;
  }

  // The primitive for a product; nullptr when the tiled products serve it.
  const Primitive* find(const Product& product) {
    const bool bf16_products =
        (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    if (!is_dense(product.a) || !is_dense(product.b) || !is_dense(product.c)) return nullptr;
    if (product.a.dtype == DType::bf16 && !bf16_products) return nullptr;
    const ProductKey key{product.rows(),       product.cols(),       product.depth(),
                         product.a.dtype,      product.c.dtype,      product.a_transposed,
                         product.b_transposed, product.bias.given(), product.accumulate};
    auto found = primitives_.find(key);
    if (found == primitives_.end()) found = primitives_.emplace(key, make_primitive(key)).first;
    return found->second ? &*found->second : nullptr;
  }

  std::optional<Primitive> make_primitive(const ProductKey& key) {
    using Tag = dnnl::memory::format_tag;
    const auto desc = [](int64_t rows, int64_t cols, DType dtype, bool transposed) {
      return dnnl::memory::desc({rows, cols}, dnnl_type(dtype), transposed ? Tag::ba : Tag::ab);
    };
    const auto a = desc(key.rows, key.depth, key.operand_dtype, key.a_transposed);
    const auto b = desc(key.depth, key.cols, key.operand_dtype, key.b_transposed);
    const auto c = desc(key.rows, key.cols, key.c_dtype, false);
    const auto bias = desc(1, key.cols, key.operand_dtype, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    try {
      const auto operation = key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
      const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
      const auto scratch = description.scratchpad_desc();
      if (static_cast<int64_t>(scratch.get_size()) > linear_scratch_bytes(num_threads_)) return std::nullopt;
      const auto memory = [this](const dnnl::memory::desc& of) { return dnnl::memory(of, engine_, DNNL_MEMORY_NONE); };
      return Primitive{dnnl::matmul(description),
                       memory(a),
                       memory(b),
                       memory(c),
                       key.bias ? memory(bias) : dnnl::memory(),
                       scratch.get_size() > 0 ? memory(scratch) : dnnl::memory()};
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return std::nullopt;
      throw Error(ExitCode::device, "oneDNN cannot make a matrix product of {} x {} x {}: {}", key.rows, key.depth,
                  key.cols, error.what());
    }
  }

  void execute(const Primitive& primitive, const Product& product) {
    std::array<dnnl_exec_arg_t, 5> arguments;
    int count = 0;
    const auto pass = [&](int name, const dnnl::memory& memory, void* data) {
      check(dnnl_memory_set_data_handle(memory.get(), data));
      arguments[static_cast<size_t>(count++)] = {name, memory.get()};
    };
    pass(DNNL_ARG_SRC, primitive.a, product.a.data);
    pass(DNNL_ARG_WEIGHTS, primitive.b, product.b.data);
    pass(DNNL_ARG_DST, primitive.c, product.c.data);
    if (product.bias.given()) pass(DNNL_ARG_BIAS, primitive.bias, product.bias.data);
    if (primitive.scratch.get(true) != nullptr) pass(DNNL_ARG_SCRATCHPAD, primitive.scratch, scratch_);
    check(dnnl_primitive_execute(primitive.matmul.get(), stream_.get(), count, arguments.data()));
  }

  static void check(dnnl_status_t status) {
    if (status != dnnl_success) {
      throw Error(ExitCode::device, "oneDNN failed to run a matrix product (status {})", static_cast<int>(status));
    }
  }

  void run_tiled(const Product& product) {
    const MatrixKernels& kernels = select_matrix_kernels();
    TiledLinear op{};
    op.rows = product.rows();
    op.cols = product.cols();
    op.depth = product.depth();
    op.operand_dtype = product.a.dtype;
    op.a = product.a.data;
    op.b = product.b.data;
    op.a_row_stride = product.a_transposed ? 1 : product.a.stride;
    op.a_col_stride = product.a_transposed ? product.a.stride : 1;
    op.b_row_stride = product.b_transposed ? 1 : product.b.stride;
    op.b_col_stride = product.b_transposed ? product.b.stride : 1;
    op.bias = product.bias.data;
    op.c = product.c.data;
    op.c_dtype = product.c.dtype;
    op.c_stride = product.c.stride;
    op.accumulate = product.accumulate;
    ScratchCarver counter(nullptr);
    carve_tiled(counter);
    const int64_t thread_bytes = counter.bytes();
#pragma omp parallel num_threads(num_threads_)
    {
      ScratchCarver carver(scratch_ + omp_get_thread_num() * thread_bytes);
      const TiledLinearBuffers buffers = carve_tiled(carver);
#pragma omp for collapse(2) schedule(static)
      for (int64_t row = 0; row < op.rows; row += tile_size) {
        for (int64_t col = 0; col < op.cols; col += tile_size) kernels.tiled_linear(op, row, col, buffers);
      }
    }
  }

  int num_threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::byte* scratch_ = nullptr;
  std::map<ProductKey, std::optional<Primitive>> primitives_;
};

CpuLinear::CpuLinear(int num_threads) : products_(std::make_unique<Products>(num_threads)) {}
CpuLinear::~CpuLinear() = default;

void CpuLinear::run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  Product product;
  product.a = op.x;
  product.b = op.w;
  product.b_transposed = true;
  product.bias = op.bias;
  product.c = op.y;
  products_->run(product);
}

void CpuLinear::run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  Product product;
  product.a = op.dy;
  product.b = op.w;
  product.c = op.dx;
  products_->run(product);
}

void CpuLinear::run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  Product product;
  product.a = op.dy;
  product.a_transposed = true;
  product.b = op.x;
  product.c = op.dw;
  product.accumulate = op.accumulate;
  products_->run_long_sum(product);
  if (op.d_bias.given()) products_->add_column_sums(op.dy, op.d_bias, op.accumulate);
}

}  // namespace gptrain
