// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/compute.hpp"
#include "engine/token_mixer.hpp"
#include "hypic/store/model_layout.hpp"

namespace hypic_tables {

/// One layer's rows in one forward pass, copied: of a linear layer what its recurrence consumes, of an attention layer
/// q and k at the rows' positions, v, and what it gave. A row is heads x dim values; what a layer lacks has no columns.
struct layer_rows {
  hypic_engine::buffer q;
  hypic_engine::buffer k;
  hypic_engine::buffer v;
  hypic_engine::buffer gates;
  hypic_engine::buffer beta;
  hypic_engine::buffer o;       ///< of an attention layer
  hypic_engine::buffer hidden;  ///< after the layer

  /// A linear layer's rows as the library takes them.
  hypic::query_rows_view view(hypic::linear_layer const& shape) const;
};

/// Passes everything on to another mixer and keeps every layer's rows.
class recording_mixer final : public hypic_engine::token_mixer {
 public:
  recording_mixer(hypic_engine::token_mixer& inner, hypic::model_layout const& layout)
      : inner_(inner), rows_(layout.layers.size()) {}

  void tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw, hypic::tensor_view<float, 3> tails) override;
  void linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) override;
  void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                 hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) override;
  void after_layer(std::int32_t layer, hypic::tensor_view<float const, 2> hidden) override;

  /// The rows of each layer; they leave the mixer.
  std::vector<layer_rows> take() noexcept { return std::move(rows_); }

 private:
  hypic_engine::token_mixer& inner_;
  std::vector<layer_rows> rows_;
};

/// Makes a mixer that stands in front of another, which outlives it. An empty one makes none.
using mixer_front = std::function<std::unique_ptr<hypic_engine::token_mixer>(hypic_engine::token_mixer& inner)>;

/// Every layer's rows of `run(mixer)`, the mixer being `inner` behind `front`.
std::vector<layer_rows> recorded(hypic_engine::token_mixer& inner, hypic::model_layout const& layout,
                                 mixer_front const& front,
                                 std::function<void(hypic_engine::token_mixer& mixer)> const& run);

}  // namespace hypic_tables
