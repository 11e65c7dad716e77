#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/regex_classes.h"

namespace gptrain::inline data {
namespace {

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Impl {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::string where;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view pattern, const std::string& where) : impl_(std::make_unique<Impl>()) {
  constexpr size_t stack_bytes = size_t{1} << 26;
  const std::string spelled = spell_out_classes(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // NO_UTF_CHECK: texts are checked once, when they are read.
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                              PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &offset, nullptr);
  if (impl_->code == nullptr) {
    throw Error(ExitCode::usage, "{}: the pattern is no regular expression: {}", where, pcre2_message(error));
  }
  impl_->where = where;
  impl_->match = pcre2_match_data_create_from_pattern(impl_->code, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  impl_->stack = pcre2_jit_stack_create(size_t{1} << 15, stack_bytes, nullptr);
  if (impl_->match == nullptr || impl_->context == nullptr || impl_->stack == nullptr) throw std::bad_alloc();
  pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
  // Without a just-in-time compiler for this machine pcre2_match() interprets the same program.
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

Regex::Match Regex::find(std::string_view text, size_t from) {
  const int result = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK, impl_->match, impl_->context);
  if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
  if (result < 0)
    throw Error(ExitCode::data, "{}: the pattern cannot be matched: {}", impl_->where, pcre2_message(result));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->match);
  if (ends[0] == ends[1]) {
    throw Error(ExitCode::data, "{}: the pattern matches an empty piece of a text, which splits nothing", impl_->where);
  }
  return {ends[0], ends[1]};
}

}  // namespace gptrain::data
