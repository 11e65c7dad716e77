// The host harness has no library for attention: the own kernels serve every shape.
#include "fused_attention.h"

#include <stdexcept>

namespace gptrain {
namespace {

class NoFusedAttention final : public FusedAttention {
 public:
  bool takes(const AttentionForward&) const override { return false; }
  bool takes(const AttentionBackward&) const override { return false; }
  void run(const AttentionForward&, std::byte*, int64_t) override { refuse(); }
  void run(const AttentionBackward&, std::byte*, int64_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("the host harness has no fused attention"); }
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(Stream) { return std::make_unique<NoFusedAttention>(); }

}  // namespace gptrain
