// Ways of rows to the experts of a mixture and back, by where the experts are: all on this rank, or spread over ranks.
#pragma once

#include <memory>

#include "model/layer.h"

namespace gptrain::inline model {

// The fields of a router's results (RouteTokens), for N rows and k experts of each.
struct RoutedFields {
  LayerLayout::Field rows;     // [1, N k]
  LayerLayout::Field weights;  // [1, N k]
  LayerLayout::Field offsets;  // [1, E + 1]
};

// REQUIRES: all ranks that share experts call in the same order.
class ExpertRows {
 public:
  virtual ~ExpertRows() = default;
  ExpertRows(const ExpertRows&) = delete;
  ExpertRows& operator=(const ExpertRows&) = delete;

  // RETURN the number of this rank's experts, the first of them, and the bound of their rows, R.
  virtual int64_t experts() const = 0;
  virtual int64_t first_expert() const = 0;
  virtual int64_t rows() const = 0;
  // RETURNS the rows that this rank's experts get if all experts get equally many; -1: R.
  virtual int64_t expected_rows() const = 0;

  // Learns from a router's results which rows go where, and fills offsets() and weights(). Called in every pass in
  // which a router chooses.
  virtual void route(const LayerCall& call) = 0;
  virtual Matrix offsets(const LayerCall& call) const = 0;  // [1, experts() + 1]
  virtual Matrix weights(const LayerCall& call) const = 0;  // [1, R]

  // Bring `x`, [N, h], to the rows of the experts, [R, h]: inputs in passes in which a router chooses, gradients of
  // results in B. RETURN them, in records or in `frame`.
  virtual Matrix send_inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  virtual Matrix send_gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  // RETURN the same again, in W. `x` as before.
  virtual Matrix inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  virtual Matrix gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  // Whether W reads gradients of results from the `x` of B.
  virtual bool gathers_again() const = 0;

  // RETURN the experts' results in the order of a router's places: rows, [R, h], as [N k, h], and numbers, [1, R], as
  // [1, N k]; in `frame` unless they are in that order already.
  virtual Matrix take_back(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) = 0;
  virtual Matrix take_back_numbers(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) = 0;

 protected:
  ExpertRows() = default;
};

// RETURNS the way for the context's experts. `layer`: number of the block. REQUIRES: context and layout outlive it.
std::unique_ptr<ExpertRows> make_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                             const RoutedFields& routed);
std::unique_ptr<ExpertRows> make_spread_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                                    const RoutedFields& routed);

}  // namespace gptrain::model
